package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
)

const (
	serverVariable = "TOOL_SERVER"
	apiKey         = "mcp-key-0123456789"
)

// The test binary is also the stdio server of these tests.
func TestMain(m *testing.M) {
	switch os.Getenv(serverVariable) {
	case "":
		os.Exit(m.Run())
	case "mute": // It reads and never answers.
		buffer := make([]byte, 1<<16)
		for {
			if _, err := os.Stdin.Read(buffer); err != nil {
				os.Exit(0)
			}
		}
	case "broken":
		fmt.Fprintln(os.Stderr, "cannot start with", apiKey)
		os.Exit(4)
	}
	server := newServer()
	if os.Getenv(serverVariable) == "large" {
		enlarge(server)
	}
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

type text struct {
	Text string `json:"text"`
}

func say(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	release := make(chan struct{}, 1)
	tool := func(name string, handle func(ctx context.Context, request *mcp.CallToolRequest, in text) (*mcp.CallToolResult,
		error)) {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, request *mcp.CallToolRequest,
			in text) (*mcp.CallToolResult, any, error) {
			result, err := handle(ctx, request, in)
			return result, nil, err
		})
	}
	tool("echo", func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, error) {
		return say("%s", in.Text), nil
	})
	tool("fail", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		return nil, errors.New("it went wrong")
	})
	tool("refuse", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32099, Message: "refused", Data: []byte(`{"why":"because"}`)}
	})
	tool("env", func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, error) {
		return say("%s", os.Getenv(in.Text)), nil
	})
	tool("pid", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		return say("%d", os.Getpid()), nil
	})
	tool("exit", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		os.Exit(3)
		return nil, nil
	})
	tool("release", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		release <- struct{}{}
		return say("released"), nil
	})
	tool("wait", func(ctx context.Context, request *mcp.CallToolRequest, in text) (*mcp.CallToolResult, error) {
		if token := request.Params.GetProgressToken(); token != nil {
			_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: "at work",
				Progress: 1, Total: 2})
		}
		select {
		case <-release:
			return say("waited"), nil
		case <-ctx.Done():
			if in.Text != "" { // the text names a file that records the cancellation
				_ = os.WriteFile(in.Text, []byte("cancelled"), 0o600)
			}
			return nil, ctx.Err()
		}
	})
	tool("strange-progress", func(ctx context.Context, request *mcp.CallToolRequest, _ text) (*mcp.CallToolResult, error) {
		for _, token := range []any{map[string]any{}, []any{1}, 1.5} {
			_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token})
		}
		return say("told"), nil
	})
	tool("grow", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		tool("grown", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
			return say("I am new"), nil
		})
		return say("grown"), nil
	})
	tool("shrink", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		server.RemoveTools("grown", "pid")
		return say("shrunk"), nil
	})
	tool("link", func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ResourceLink{URI: "note://one", Name: "one"}}}, nil
	})
	server.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "who"}}}, func(_ context.Context,
		request *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Greet " +
			request.Params.Arguments["who"]}}}}, nil
	})
	read := func(_ context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: request.Params.URI, Text: "this is " +
			request.Params.URI}}}, nil
	}
	server.AddResource(&mcp.Resource{Name: "one", URI: "note://one"}, read)
	server.AddResourceTemplate(&mcp.ResourceTemplate{Name: "any", URITemplate: "note://any/{name}"}, read)
	return server
}

func stdio(name, kind string, env ...session.EnvVar) session.StdioServer {
	return session.StdioServer{Name: name, Command: os.Args[0], Env: append(env, session.EnvVar{Name: serverVariable,
		Value: kind})}
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func serveSSE(t *testing.T) string {
	t.Helper()
	server := newServer()
	return serve(t, mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil))
}

func streamableHandler() http.Handler {
	server := newServer()
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
}

func brokenAfterwards(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte(`"method":"tools/call"`)) {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func locked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+apiKey {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
