package router_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
)

// altered returns a server whose results are changed by alter(). The server also supports the newer
// protocol, and responds with JSON instead of an event stream.
func altered(alter func(mcp.Result)) http.Handler {
	server := newServer()
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
			if list, ok := request.GetParams().(*mcp.ListPromptsParams); ok {
				list.Cursor = "" // every page is the modified first page
			}
			result, err := next(ctx, method, request)
			if err == nil {
				alter(result)
			}
			return result, err
		}
	})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true})
}

func TestAMalformedToolIsNotOffered(t *testing.T) {
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t, altered(func(result mcp.Result) {
		if tools, ok := result.(*mcp.ListToolsResult); ok {
			tools.Tools = append(tools.Tools, &mcp.Tool{Name: "strange", InputSchema: map[string]any{"type": "string"}})
		}
	}))}}})
	f.expect(t, "127-0-0-1_echo", "unhurt", "unhurt")
	if got := f.health(t, "127-0-0-1"); got.State != session.ToolServerConnected || got.Tools != 12 ||
		!strings.Contains(got.Error, "strange is not offered") {
		t.Errorf("the health is %+v", got)
	}
}

func TestNullItemsInListsAreIgnored(t *testing.T) {
	for name, alter := range map[string]func(mcp.Result){
		"a null tool": func(result mcp.Result) {
			if r, ok := result.(*mcp.ListToolsResult); ok {
				r.Tools = append(r.Tools, nil)
			}
		},
		"a null prompt": func(result mcp.Result) {
			if r, ok := result.(*mcp.ListPromptsResult); ok {
				r.Prompts = append(r.Prompts, nil)
			}
		},
		"a null resource": func(result mcp.Result) {
			if r, ok := result.(*mcp.ListResourcesResult); ok {
				r.Resources = append(r.Resources, nil)
			}
		},
		"a null template": func(result mcp.Result) {
			if r, ok := result.(*mcp.ListResourceTemplatesResult); ok {
				r.ResourceTemplates = append(r.ResourceTemplates, nil)
			}
		},
		"a null message of a prompt": func(result mcp.Result) {
			if r, ok := result.(*mcp.GetPromptResult); ok {
				r.Messages = append([]*mcp.PromptMessage{nil}, r.Messages...)
			}
		},
		"a null content of a resource": func(result mcp.Result) {
			if r, ok := result.(*mcp.ReadResourceResult); ok {
				r.Contents = append([]*mcp.ResourceContents{nil}, r.Contents...)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, session.ToolServers{
				Stdio: []session.StdioServer{stdio("good", "normal")},
				SHTTP: []session.RemoteServer{{URL: serve(t, altered(alter))}},
			})
			for _, server := range []string{"good", "127-0-0-1"} {
				if got := f.health(t, server); got.State != session.ToolServerConnected || got.Tools != 12 || got.Prompts != 1 ||
					got.Resources != 2 {
					t.Errorf("the health is %+v", got)
				}
				f.expect(t, server+"_echo", "unhurt", "unhurt")
				prompt, err := f.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: server + "_greet"})
				if err != nil || len(prompt.Messages) != 1 || prompt.Messages[0] == nil {
					t.Errorf("the prompt is %+v, %v", prompt, err)
				}
				read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://" + server + "/note://one"})
				if err != nil || len(read.Contents) != 1 || read.Contents[0] == nil {
					t.Errorf("the resource is %+v, %v", read, err)
				}
			}
		})
	}
}

func TestProgressWithAnUnknownTokenIsIgnored(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("strange", "normal"), stdio("good", "normal")}})
	params := &mcp.CallToolParams{Name: "strange_strange-progress", Arguments: text{}}
	params.SetProgressToken("mine")
	if _, err := f.client.CallTool(t.Context(), params); err != nil {
		t.Error(err)
	}
	f.expect(t, "good_echo", "unhurt", "unhurt")
	f.expect(t, "strange_echo", "unhurt", "unhurt")
}

func TestACachedResourceKeepsItsURI(t *testing.T) {
	handler := altered(func(result mcp.Result) {
		if r, ok := result.(*mcp.ReadResourceResult); ok {
			r.TTLMs = 60_000
		}
	})
	// The SDK caches results only with the newer protocol. The server refuses the handshake of the
	// older protocol, so that the router uses the newer protocol.
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if bytes.Contains(body, []byte(`"method":"initialize"`)) {
				http.Error(w, "no", http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			handler.ServeHTTP(w, r)
		}))}}})
	eventually(t, "it is connected", func() bool { return f.health(t, "127-0-0-1").State == session.ToolServerConnected })
	const uri = "parley://127-0-0-1/note://one"
	for range 3 {
		read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil || read.Contents[0].URI != uri {
			t.Errorf("got %+v, %v", read, err)
		}
	}
}
