package router_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/router"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

// talkative returns a server that repeats its key in every response. After a progress notification,
// the server waits until the test closes the channel.
func talkative(heard <-chan struct{}) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "tell", Description: "with " + apiKey},
		func(ctx context.Context, request *mcp.CallToolRequest, in text) (*mcp.CallToolResult, any, error) {
			if token := request.Params.GetProgressToken(); token != nil {
				_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: "with " +
					apiKey})
				<-heard
			}
			if in.Text != "" {
				return nil, nil, &jsonrpc.Error{Code: -32099, Message: "no " + apiKey, Data: []byte(`{"why":"` + apiKey + `"}`)}
			}
			return &mcp.CallToolResult{
				Content: []mcp.Content{&mcp.TextContent{Text: "it is " + apiKey},
					&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "note://" + apiKey, Text: apiKey}}},
				StructuredContent: map[string]any{"headers": []any{"Bearer " + apiKey}, "number": 42},
			}, nil, nil
		})
	server.AddPrompt(&mcp.Prompt{Name: "greet"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult,
		error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Greet " +
			apiKey}}}}, nil
	})
	server.AddResource(&mcp.Resource{Name: "one", URI: "note://one"}, func(_ context.Context, r *mcp.ReadResourceRequest) (
		*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "this is " + apiKey}}}, nil
	})
	return server
}

func TestAServersKeyIsMaskedInItsAnswers(t *testing.T) {
	heard := make(chan struct{})
	server := talkative(heard)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{Name: "s", URL: serve(t, handler),
		APIKeyFile: "key"}}})
	answers := map[string]string{}
	note := func(kind string, answer any, err error) {
		text, _ := json.Marshal(answer)
		answers[kind] = string(text)
		if err != nil {
			answers[kind] += err.Error()
			if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
				answers[kind] += string(refused.Data)
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
	answers["progress"] = <-progress
	_, err = f.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "s_tell", Arguments: text{"fail"}})
	note("an error", nil, err)
	prompt, err := f.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "s_greet"})
	note("a prompt", prompt, err)
	read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://s/note://one"})
	note("a resource", read, err)
	tools, err := f.client.ListTools(t.Context(), nil)
	note("the tools", tools, err)
	for kind, text := range answers {
		if strings.Contains(text, apiKey) || !strings.Contains(text, "***") {
			t.Errorf("%s: %s", kind, text)
		}
	}
	if !strings.Contains(answers["a result"], `"number":42`) {
		t.Errorf("a number changed: %s", answers["a result"])
	}
}

// startKeyed starts a router. Its tool server is named postgres and has this key.
func startKeyed(t *testing.T, key string, server *mcp.Server) *fixture {
	t.Helper()
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	store := secrets.New(map[string]string{"key": key})
	return start(t, session.ToolServers{SHTTP: []session.RemoteServer{{Name: "postgres", URL: serve(t, handler),
		APIKeyFile: "key"}}},
		func(o *router.Options) { o.Key, o.Value, o.Mask = store.Key, store.Value, store.Mask })
}

// namesake returns a server with this word in all names and texts.
func namesake(word string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{
		Name: word + "_query", Description: "says " + word,
		InputSchema: json.RawMessage(`{"type":"object","required":["` + word + `"],"properties":{"` + word + `":{"enum":["` +
			word + `"],"description":"says ` + word + `"}}}`),
	}, func(_ context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{
			Content: []mcp.Content{
				&mcp.TextContent{Text: "says " + word}, &mcp.ResourceLink{URI: "note://" + word, Name: word, Description: "says " +
					word},
			},
			StructuredContent: map[string]any{word: "says " + word},
		}, nil
	})
	server.AddPrompt(&mcp.Prompt{Name: word, Description: "says " + word, Arguments: []*mcp.PromptArgument{{Name: word}}},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "says " +
				word}}}}, nil
		})
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "says " + word}}}, nil
	}
	server.AddResource(&mcp.Resource{Name: word, URI: "note://" + word, Description: "says " + word}, read)
	server.AddResourceTemplate(&mcp.ResourceTemplate{Name: word, URITemplate: "note://" + word + "/{name}",
		Description: "says " + word}, read)
	return server
}

func expectAnswer(t *testing.T, answer any, err error, without string, with ...string) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return
	}
	encoded, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(encoded), without) {
		t.Errorf("%q is in %s", without, encoded)
	}
	for _, part := range with {
		if !strings.Contains(string(encoded), part) {
			t.Errorf("%q is not in %s", part, encoded)
		}
	}
}

// A password may be equal to the server's name or to a keyword of the protocol.
func TestToolsNamedLikeASecretCanBeCalled(t *testing.T) {
	for _, word := range []string{"postgres", "db-01", "text", "user", "name", "object"} {
		t.Run(word, func(t *testing.T) {
			f := startKeyed(t, word, namesake(word))
			said, masked := "says "+word, "says ***"
			tools, err := f.client.ListTools(t.Context(), nil)
			expectAnswer(t, tools, err, said, masked, `"postgres_`+word+`_query"`, `"required":["`+word+`"]`, `"enum":["`+word+
				`"]`, `"`+word+`":{`)
			prompts, err := f.client.ListPrompts(t.Context(), nil)
			expectAnswer(t, prompts, err, said, masked, `"postgres_`+word+`"`, `"name":"`+word+`"`)
			resources, err := f.client.ListResources(t.Context(), nil)
			expectAnswer(t, resources, err, said, masked, `"parley://postgres/note://`+word+`"`)
			templates, err := f.client.ListResourceTemplates(t.Context(), nil)
			expectAnswer(t, templates, err, said, masked, `"parley://postgres/note://`+word+`/{name}"`)

			called, err := f.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "postgres_" + word + "_query",
				Arguments: map[string]string{word: word}})
			expectAnswer(t, called, err, said, masked, `"parley://postgres/note://`+word+`"`, `{"`+word+`":"says ***"}`)
			prompt, err := f.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "postgres_" + word})
			expectAnswer(t, prompt, err, said, masked, `"role":"user"`)
			read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://postgres/note://" + word})
			expectAnswer(t, read, err, said, masked, `"parley://postgres/note://`+word+`"`)
		})
	}
}

// A value that is clearly a key is masked even in names, although calls with the masked name fail.
func TestKeysAreMaskedInToolAndResourceNames(t *testing.T) {
	f := startKeyed(t, apiKey, namesake(apiKey))
	tools, err := f.client.ListTools(t.Context(), nil)
	expectAnswer(t, tools, err, apiKey, "postgres_***_query")
	prompts, err := f.client.ListPrompts(t.Context(), nil)
	expectAnswer(t, prompts, err, apiKey, "postgres_***")
	resources, err := f.client.ListResources(t.Context(), nil)
	expectAnswer(t, resources, err, apiKey, "parley://postgres/note://***")
	templates, err := f.client.ListResourceTemplates(t.Context(), nil)
	expectAnswer(t, templates, err, apiKey, "parley://postgres/note://***")
	called, err := f.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "postgres_" + apiKey + "_query",
		Arguments: map[string]string{apiKey: apiKey}})
	expectAnswer(t, called, err, apiKey, "parley://postgres/note://***", `{"***":"says ***"}`)
}

// gallery returns a tool server. Its results contain a text and the picture, in each content type
// that can hold binary data.
func gallery(picture []byte) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "show"}, func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult,
		any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: "beside"}, &mcp.ImageContent{Data: picture, MIMEType: "image/png"},
			&mcp.AudioContent{Data: picture, MIMEType: "audio/wav"},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "note://it", Blob: picture}},
		}}, nil, nil
	})
	server.AddPrompt(&mcp.Prompt{Name: "show"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult,
		error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "beside"}}, {Role: "user", Content: &mcp.ImageContent{Data: picture,
				MIMEType: "image/png"}},
		}}, nil
	})
	server.AddResource(&mcp.Resource{Name: "it", URI: "note://it"}, func(_ context.Context, r *mcp.ReadResourceRequest) (
		*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "note://beside", Text: "beside"},
			{URI: r.Params.URI, MIMEType: "image/png", Blob: picture}}}, nil
	})
	return server
}

func TestBinaryContentIsOmittedOnlyIfItContainsAKey(t *testing.T) {
	const leftOut = "contains a key"
	encoded := func(picture []byte) string { return base64.StdEncoding.EncodeToString(picture) }
	short, err := base64.StdEncoding.DecodeString("AAAAkeyzAAAA")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, key string
		picture   []byte
		kept      bool
	}{
		{"a short key in the base64 text", "keyz", short, true},
		{"a short key in the bytes", "keyz", []byte("\x00keyz\x00"), true},
		{"a key in the bytes", apiKey, []byte("\x00" + apiKey), false},
		{"a percent-encoded key in the bytes", "key 0123456789", []byte("?k=key%200123456789"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := startKeyed(t, test.key, gallery(test.picture))
			with, without := encoded(test.picture), leftOut
			if !test.kept {
				with, without = without, with
			}
			called, err := f.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "postgres_show", Arguments: text{}})
			expectAnswer(t, called, err, without, "beside", with)
			if err == nil && len(called.Content) != 4 {
				t.Errorf("there are %d contents", len(called.Content))
			}
			prompt, err := f.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "postgres_show"})
			expectAnswer(t, prompt, err, without, "beside", with)
			read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://postgres/note://it"})
			expectAnswer(t, read, err, without, "beside", with, "parley://postgres/note://it")
		})
	}
}

func TestOnlyAServersOwnKeysAreMaskedInItsAnswers(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal")}})
	f.expect(t, "s_echo", apiKey, apiKey)
}
