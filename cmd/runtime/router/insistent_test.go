package router_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/router"
)

func TestProgressDoesNotExtendACallForEver(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "busy"}, func(ctx context.Context, request *mcp.CallToolRequest,
		_ text) (*mcp.CallToolResult, any, error) {
		for ctx.Err() == nil {
			_ = request.Session.NotifyProgress(ctx,
				&mcp.ProgressNotificationParams{ProgressToken: request.Params.GetProgressToken()})
			<-time.After(time.Millisecond)
		}
		return nil, nil, ctx.Err()
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{Name: "s", URL: serve(t, handler)}}},
		func(o *router.Options) {
			o.LongestCall = 100 * time.Millisecond
		})
	go func() {
		for {
			<-f.progress
		}
	}()
	params := &mcp.CallToolParams{Name: "s_busy", Arguments: text{}}
	params.SetProgressToken("mine")
	result, err := f.client.CallTool(t.Context(), params)
	if err != nil || !result.IsError || !strings.Contains(result.Content[0].(*mcp.TextContent).Text,
		"did not answer within 100ms") {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestListRequestsAreRateLimited(t *testing.T) {
	const pause = 200 * time.Millisecond
	var mu sync.Mutex
	var asked []time.Time
	server := newServer()
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
			if method == "tools/list" {
				mu.Lock()
				asked = append(asked, time.Now())
				mu.Unlock()
			}
			return next(ctx, method, request)
		}
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{Name: "s", URL: serve(t, handler)}}},
		func(o *router.Options) {
			o.ListPause = pause
		})
	eventually(t, "it got several list requests", func() bool {
		f.expect(t, "s_grow", "", "grown")
		f.expect(t, "s_shrink", "", "shrunk")
		mu.Lock()
		defer mu.Unlock()
		return len(asked) >= 5
	})
	mu.Lock()
	defer mu.Unlock()
	// The router sends the first list request at its start, and the second request immediately after
	// the first change. It must pause before the third and each later request.
	for i := 2; i < len(asked); i++ {
		if rested := asked[i].Sub(asked[i-1]); rested < pause/2 {
			t.Errorf("the next list request came after %s", rested)
		}
	}
}
