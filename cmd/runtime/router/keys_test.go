package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
)

// talkative repeats its key wherever it can. With progress it waits until that was heard.
func talkative(heard <-chan struct{}) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "tell", Description: "with " + apiKey},
		func(ctx context.Context, request *mcp.CallToolRequest, in text) (*mcp.CallToolResult, any, error) {
			if token := request.Params.GetProgressToken(); token != nil {
				_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: "with " + apiKey})
				<-heard
			}
			if in.Text != "" {
				return nil, nil, &jsonrpc.Error{Code: -32099, Message: "no " + apiKey, Data: []byte(`{"why":"` + apiKey + `"}`)}
			}
			return &mcp.CallToolResult{
				Content:           []mcp.Content{&mcp.TextContent{Text: "it is " + apiKey}, &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "note://" + apiKey, Text: apiKey}}},
				StructuredContent: map[string]any{"headers": []any{"Bearer " + apiKey}, "number": 42},
			}, nil, nil
		})
	server.AddPrompt(&mcp.Prompt{Name: "greet"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Greet " + apiKey}}}}, nil
	})
	server.AddResource(&mcp.Resource{Name: "one", URI: "note://one"}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "this is " + apiKey}}}, nil
	})
	server.AddResource(&mcp.Resource{Name: "raw", URI: "note://raw"}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Blob: []byte("\x00" + apiKey)}}}, nil
	})
	return server
}

func TestTheKeyOfAServerIsNotToldByIt(t *testing.T) {
	heard := make(chan struct{})
	server := talkative(heard)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{Name: "s", URL: serve(t, handler), APIKeyFile: "key"}}})
	told := map[string]string{}
	note := func(what string, answer any, err error) {
		text, _ := json.Marshal(answer)
		told[what] = string(text)
		if err != nil {
			told[what] += err.Error()
			if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
				told[what] += string(refused.Data)
			}
		}
	}
	params := &mcp.CallToolParams{Name: "s_tell", Arguments: text{}}
	params.SetProgressToken("mine")
	progress := make(chan string, 1)
	go func() {
		progress <- (<-f.progress).Message
		close(heard)
	}()
	called, err := f.client.CallTool(t.Context(), params)
	note("a result", called, err)
	told["progress"] = <-progress
	_, err = f.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "s_tell", Arguments: text{"fail"}})
	note("an error", nil, err)
	prompt, err := f.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "s_greet"})
	note("a prompt", prompt, err)
	read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://s/note://one"})
	note("a resource", read, err)
	tools, err := f.client.ListTools(t.Context(), nil)
	note("the tools", tools, err)
	for what, text := range told {
		if strings.Contains(text, apiKey) || !strings.Contains(text, "***") {
			t.Errorf("%s: %s", what, text)
		}
	}
	if !strings.Contains(told["a result"], `"number":42`) {
		t.Errorf("a number is not what it was: %s", told["a result"])
	}
	// Bytes are told as they are or not at all.
	if raw, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://s/note://raw"}); err == nil || strings.Contains(err.Error(), apiKey) {
		t.Errorf("bytes: %+v, %v", raw, err)
	}
}

func TestOtherSecretsOfTheSessionPassThrough(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal")}})
	f.expect(t, "s_echo", apiKey, apiKey)
}
