package router_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/router"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

const patience = time.Minute

type fixture struct {
	*router.Router
	client *mcp.ClientSession
	stop   func()
	// The channel changed receives a value for each change of the tool list. The channel progress
	// receives every progress notification.
	changed  chan struct{}
	progress chan *mcp.ProgressNotificationParams
	output   *output
	busy     atomic.Int32
}

type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(text)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.String()
}

func start(t *testing.T, servers session.ToolServers, adjust ...func(*router.Options)) *fixture {
	t.Helper()
	store := secrets.New(map[string]string{"key": apiKey})
	f := &fixture{changed: make(chan struct{}, 100), progress: make(chan *mcp.ProgressNotificationParams, 100),
		output: &output{}}
	lines := store.Output(f.output)
	options := router.Options{
		Servers: servers, Key: store.Key, Value: store.Value, Mask: store.Mask, Dir: t.TempDir(), Env: os.Environ(),
		Output: lines.Lines, Confine: func(*exec.Cmd) {},
		Busy: func() func() { f.busy.Add(1); return func() {} },
		Log:  slog.New(slog.DiscardHandler), FirstRetry: time.Millisecond, ListPause: time.Millisecond,
	}
	for _, a := range adjust {
		a(&options)
	}
	f.Router = router.New(options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		within(t, "the router ends", ended)
	})
	t.Cleanup(f.stop)
	within(t, "the servers are connected or failed", f.Settled())

	endpoint := httptest.NewServer(f)
	t.Cleanup(endpoint.Close)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { f.changed <- struct{}{} },
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			f.progress <- r.Params
		},
	})
	var err error
	if f.client, err = client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: endpoint.URL},
		nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.client.Close()
		endpoint.CloseClientConnections()
	})
	return f
}

func within[T any](t *testing.T, what string, happens <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-happens:
	case <-time.After(patience):
		t.Fatalf("timed out: %s", what)
	}
	return value
}

// eventually polls a condition, because clients are not notified when a server is connected again.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func (f *fixture) call(t *testing.T, tool, argument string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	result, err := f.client.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: text{argument}})
	if err != nil {
		return "", err
	}
	content, ok := result.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("%s answered %T", tool, result.Content[0])
	}
	if result.IsError {
		return "", fmt.Errorf("result: %s", content.Text)
	}
	return content.Text, nil
}

func (f *fixture) expect(t *testing.T, tool, argument, want string) {
	t.Helper()
	if got, err := f.call(t, tool, argument); err != nil || got != want {
		t.Errorf("%s(%q) is %q, %v; want %q", tool, argument, got, err, want)
	}
}

func (f *fixture) health(t *testing.T, name string) session.ToolServer {
	t.Helper()
	for _, server := range f.Health() {
		if server.Name == name {
			return server
		}
	}
	t.Fatalf("no server %s in %+v", name, f.Health())
	return session.ToolServer{}
}

func (f *fixture) tools(t *testing.T) []string {
	t.Helper()
	var names []string
	for tool, err := range f.client.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}
