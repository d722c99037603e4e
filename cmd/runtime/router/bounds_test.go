package router_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/router"
)

// enlarge makes the server's echo tool return 17 MiB of text for the input "large".
func enlarge(server *mcp.Server) {
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, request)
			if r, ok := result.(*mcp.CallToolResult); ok && r.Content[0].(*mcp.TextContent).Text == "large" {
				r.Content[0] = &mcp.TextContent{Text: strings.Repeat("x", 17<<20)}
			}
			return result, err
		}
	})
}

func TestAnOversizedAnswerIsRejected(t *testing.T) {
	large := newServer()
	enlarge(large)
	get := func(*http.Request) *mcp.Server { return large }
	for name, servers := range map[string]session.ToolServers{
		"stdio":    {Stdio: []session.StdioServer{stdio("127-0-0-1", "large")}},
		"events":   {SSE: []session.RemoteServer{{URL: serve(t, mcp.NewSSEHandler(get, nil))}}},
		"a stream": {SHTTP: []session.RemoteServer{{URL: serve(t, mcp.NewStreamableHTTPHandler(get, nil))}}},
		"JSON": {SHTTP: []session.RemoteServer{{URL: serve(t, mcp.NewStreamableHTTPHandler(get,
			&mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true}))}}},
	} {
		t.Run(name, func(t *testing.T) {
			servers.Stdio = append(servers.Stdio, stdio("good", "normal"))
			f := start(t, servers)
			if got, err := f.call(t, "127-0-0-1_echo", "large"); err == nil {
				t.Errorf("got %d bytes", len(got))
			} else if name == "JSON" && !strings.Contains(err.Error(), "more than 16 MiB") {
				t.Errorf("got %v", err)
			}
			f.expect(t, "good_echo", "unhurt", "unhurt")
			eventually(t, "it is connected again", func() bool {
				got, err := f.call(t, "127-0-0-1_echo", "small")
				return err == nil && got == "small"
			})
		})
	}
}

func TestAnEndlessListIsTruncated(t *testing.T) {
	for name, c := range map[string]struct {
		fill        func(page int, r *mcp.ListPromptsResult)
		least, most int
	}{
		"many items": {func(page int, r *mcp.ListPromptsResult) {
			for i := range 500 {
				r.Prompts = append(r.Prompts, &mcp.Prompt{Name: fmt.Sprintf("p%d-%d", page, i)})
			}
		}, 1000, 5000},
		"large items": {func(page int, r *mcp.ListPromptsResult) {
			r.Prompts = []*mcp.Prompt{{Name: fmt.Sprintf("p%d", page), Description: strings.Repeat("x", 1<<20)}}
		}, 1, 4},
		"one large page": {func(page int, r *mcp.ListPromptsResult) {
			r.Prompts = nil
			for i := range 12 {
				r.Prompts = append(r.Prompts, &mcp.Prompt{Name: fmt.Sprintf("p%d-%d", page, i), Description: strings.Repeat("x",
					1<<20)})
			}
		}, 1, 4},
		"large pages": {func(_ int, r *mcp.ListPromptsResult) {
			r.Meta, r.Prompts = mcp.Meta{"more": strings.Repeat("x", 1<<20)}, nil
		}, 0, 0},
		"empty pages": {func(_ int, r *mcp.ListPromptsResult) { r.Prompts = nil }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			page := 0
			f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t, altered(func(result mcp.Result) {
				if r, ok := result.(*mcp.ListPromptsResult); ok {
					page++
					r.NextCursor = fmt.Sprint(page)
					c.fill(page, r)
				}
			}))}}}, func(o *router.Options) { o.ConnectTimeout = time.Minute; o.FirstRetry = time.Hour })
			got := f.health(t, "127-0-0-1")
			if got.State != session.ToolServerConnected || got.Prompts < c.least || got.Prompts > c.most ||
				!strings.Contains(got.Error, "prompts are offered") {
				t.Errorf("the health is %+v", got)
			}
			if page > 150 {
				t.Errorf("%d pages were read", page)
			}
			f.expect(t, "127-0-0-1_echo", "unhurt", "unhurt")
		})
	}
}
