package router_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/router"
)

func TestOneEndpointServesAllThreeKindsOfToolServers(t *testing.T) {
	f := start(t, session.ToolServers{
		Stdio: []session.StdioServer{stdio("local", "normal")},
		SSE:   []session.RemoteServer{{URL: serveSSE(t)}},
		SHTTP: []session.RemoteServer{{URL: strings.Replace(serve(t, streamableHandler()), "http://", "ws://", 1)}},
	})
	for _, server := range []string{"local", "127-0-0-1", "127-0-0-1-2"} {
		f.expect(t, server+"_echo", "hello "+server, "hello "+server)
		if got := f.health(t, server); got.State != session.ToolServerConnected || got.Tools != 12 || got.Prompts != 1 ||
			got.Resources != 2 || got.Error != "" {
			t.Errorf("the health is %+v", got)
		}
	}
	if tools := f.tools(t); len(tools) != 36 {
		t.Errorf("the tools are %q", tools)
	}
}

func TestAToolServerReceivesItsKey(t *testing.T) {
	sse := newServer()
	f := start(t, session.ToolServers{
		SSE: []session.RemoteServer{{URL: serve(t, locked(mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return sse },
			nil))), APIKeyFile: "key"}},
		SHTTP: []session.RemoteServer{{URL: serve(t, locked(streamableHandler())), APIKeyFile: "key"},
			{URL: serve(t, locked(streamableHandler()))}},
	})
	f.expect(t, "127-0-0-1_echo", "sse", "sse")
	f.expect(t, "127-0-0-1-2_echo", "shttp", "shttp")
	if got := f.health(t, "127-0-0-1-3"); got.State != session.ToolServerFailed || !strings.Contains(got.Error,
		"Unauthorized") {
		t.Errorf("without the key the health is %+v", got)
	}
}

func TestAKeyIsNotSentToARedirectTarget(t *testing.T) {
	shown := make(chan string, 100)
	elsewhere := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown <- r.Header.Get("Authorization")
		http.NotFound(w, r)
	}))
	here := serve(t, http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect))
	start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: here, APIKeyFile: "key"}}})
	if got := within(t, "the redirect is followed", shown); got != "" {
		t.Errorf("the other host got %q", got)
	}
}

func TestACrashedServerIsRestarted(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("crashing", "normal"), stdio("other", "normal")}})
	before, err := f.call(t, "crashing_pid", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.call(t, "crashing_exit", ""); err == nil || !strings.Contains(err.Error(), "crashing") {
		t.Errorf("the call that crashed it: %q, %v", got, err)
	}
	f.expect(t, "other_echo", "unhurt", "unhurt")
	eventually(t, "it is restarted", func() bool {
		after, err := f.call(t, "crashing_pid", "")
		return err == nil && after != before
	})
	if got := f.health(t, "crashing"); got.State != session.ToolServerConnected || got.Restarts != 1 {
		t.Errorf("the health is %+v", got)
	}
	if got := f.health(t, "other"); got.Restarts != 0 {
		t.Errorf("the other's health is %+v", got)
	}
}

func TestARestartedServerIsReconnected(t *testing.T) {
	var current atomic.Pointer[http.Handler]
	restart := func(handler http.Handler) { current.Store(&handler) }
	restart(streamableHandler())
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*current.Load()).ServeHTTP(w, r) }))
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: url}}})
	f.expect(t, "127-0-0-1_echo", "before", "before")
	restart(streamableHandler())
	eventually(t, "it is connected again", func() bool {
		got, err := f.call(t, "127-0-0-1_echo", "after")
		return err == nil && got == "after"
	})
	if got := f.health(t, "127-0-0-1"); got.Restarts != 1 || got.Error != "" {
		t.Errorf("the health is %+v", got)
	}
}

func TestABrokenSSEStreamIsReopened(t *testing.T) {
	streams := make(chan context.CancelFunc, 10)
	server := newServer()
	handler := mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil)
	f := start(t, session.ToolServers{SSE: []session.RemoteServer{{URL: serve(t,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			if r.Method == http.MethodGet {
				streams <- cancel
			}
			handler.ServeHTTP(w, r.WithContext(ctx))
		}))}}})
	f.expect(t, "127-0-0-1_echo", "before", "before")
	within(t, "the stream is open", streams)()
	within(t, "it is opened again", streams)
	eventually(t, "it is connected again", func() bool {
		got, err := f.call(t, "127-0-0-1_echo", "after")
		return err == nil && got == "after"
	})
}

func TestDeadAndHangingServersDoNotAffectOthers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hanging := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer close(release)
	f := start(t, session.ToolServers{
		Stdio: []session.StdioServer{
			stdio("good", "normal"), stdio("mute", "mute"), stdio("broken", "broken"), {Name: "missing",
				Command: "no-such-program"},
		},
		SSE:   []session.RemoteServer{{URL: hanging}, {URL: "http://127.0.0.1:1/sse"}},
		SHTTP: []session.RemoteServer{{URL: hanging + "/mcp"}, {URL: "http://host.invalid/mcp"}},
	}, func(o *router.Options) { o.ConnectTimeout = 15 * time.Second })
	f.expect(t, "good_echo", "unhurt", "unhurt")
	for name, says := range map[string]string{
		"mute": "did not answer", "broken": "exit status 4", "missing": "not found", "127-0-0-1": "did not answer",
		"127-0-0-1-2": "refused", "127-0-0-1-3": "did not answer", "host-invalid": "host.invalid",
	} {
		if got := f.health(t, name); got.State != session.ToolServerFailed || !strings.Contains(got.Error, says) {
			t.Errorf("the health is %+v, want it to say %q", got, says)
		}
	}
	if text := f.output.text(); !strings.Contains(text, "[broken] cannot start with ***\n") {
		t.Errorf("the output is %q", text)
	}
}

func TestTheKeyInAServersURLIsNeverShown(t *testing.T) {
	const key = "SECRETVALUE"
	var log output
	f := start(t, session.ToolServers{
		SSE: []session.RemoteServer{{URL: "http://127.0.0.1:1/" + key + "?apiKey=" + key},
			{URL: "http://127.0.0.1:1/a b?apiKey=a " + key}},
		SHTTP: []session.RemoteServer{
			{URL: "http://127.0.0.1:1/" + key + "?apiKey=" + key},
			{URL: serve(t, http.RedirectHandler("http://127.0.0.1:1/?apiKey="+key, http.StatusTemporaryRedirect))},
			{URL: serve(t, brokenAfterwards(streamableHandler())) + "/?apiKey=" + key},
			{URL: "http://" + key + "@127.0.0.1:1/"},
		},
	}, func(o *router.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 2 {
		if got, err := f.call(t, "127-0-0-1-5_echo", ""); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("a call: %q, %v", got, err)
		}
	}
	for i, server := range f.Health() {
		if i == 4 {
			continue // the server that was called
		}
		if server.State != session.ToolServerFailed || !strings.Contains(server.Error, "http://127.0.0.1:1") ||
			!strings.Contains(server.Error, "refused") {
			t.Errorf("the health is %+v", server)
		}
	}
	eventually(t, "the failure is logged", func() bool { return strings.Count(log.text(), "refused") >= 5 })
	if all := fmt.Sprint(f.Health()) + log.text(); strings.Contains(all, key) {
		t.Errorf("the key is in:\n%s", all)
	}
}

func TestAServerWorksWithoutItsNotificationStream(t *testing.T) {
	normal := streamableHandler()
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				<-r.Context().Done()
				return
			}
			normal.ServeHTTP(w, r)
		}))}}}, func(o *router.Options) { o.StreamTimeout = 100 * time.Millisecond })
	f.expect(t, "127-0-0-1_echo", "served", "served")
}

func TestASlowCallTimesOutWithoutAffectingOthers(t *testing.T) {
	t.Parallel()
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("slow", "normal"), stdio("quick", "normal")}},
		func(o *router.Options) { o.CallTimeout = 10 * time.Second })
	cancelled := filepath.Join(t.TempDir(), "cancelled")
	slow := make(chan error, 1)
	go func() {
		_, err := f.call(t, "slow_wait", cancelled)
		slow <- err
	}()
	f.expect(t, "quick_echo", "unhurt", "unhurt")
	f.expect(t, "slow_echo", "also unhurt", "also unhurt")
	if err := within(t, "the call times out", slow); err == nil ||
		err.Error() != "result: tool server slow: did not answer within 10s" {
		t.Errorf("got %v", err)
	}
	eventually(t, "the server sees the cancellation", func() bool { _, err := os.Stat(cancelled); return err == nil })
}

func TestCancellingACallCancelsItAtTheServer(t *testing.T) {
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t, streamableHandler())}}})
	file := filepath.Join(t.TempDir(), "cancelled")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "127-0-0-1_wait", Arguments: text{file}}
		params.SetProgressToken("mine")
		_, err := f.client.CallTool(ctx, params)
		ended <- err
	}()
	within(t, "the call is at the server", f.progress)
	cancel()
	if err := within(t, "the call ends", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the server sees the cancellation", func() bool { _, err := os.Stat(file); return err == nil })
}

func TestProgressIsForwarded(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal")},
		SSE: []session.RemoteServer{{URL: serveSSE(t)}}})
	for _, server := range []string{"s", "127-0-0-1"} {
		ended := make(chan error, 1)
		go func() {
			params := &mcp.CallToolParams{Name: server + "_wait", Arguments: text{}}
			params.SetProgressToken("mine")
			_, err := f.client.CallTool(t.Context(), params)
			ended <- err
		}()
		if got := within(t, "progress arrives", f.progress); got.ProgressToken != "mine" || got.Message != "at work" ||
			got.Progress != 1 || got.Total != 2 {
			t.Errorf("got %+v", got)
		}
		f.expect(t, server+"_release", "", "released")
		if err := within(t, "the call ends", ended); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorsAreForwarded(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal")},
		SHTTP: []session.RemoteServer{{URL: serve(t, streamableHandler())}}})
	for _, server := range []string{"s", "127-0-0-1"} {
		if _, err := f.call(t, server+"_fail", ""); err == nil || err.Error() != "result: it went wrong" {
			t.Errorf("a tool's error: %v", err)
		}
		var refused *jsonrpc.Error
		if _, err := f.call(t, server+"_refuse", ""); !errors.As(err, &refused) || refused.Code != -32099 ||
			refused.Message != "refused" || string(refused.Data) != `{"why":"because"}` {
			t.Errorf("a server's error: %v", err)
		}
	}
	if _, err := f.call(t, "s_nothing", ""); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("an unknown tool: %v", err)
	}
}

func TestChangesOfAToolListAreForwarded(t *testing.T) {
	f := start(t, session.ToolServers{
		Stdio: []session.StdioServer{stdio("s", "normal")}, SSE: []session.RemoteServer{{URL: serveSSE(t)}},
		SHTTP: []session.RemoteServer{{URL: serve(t, streamableHandler())}},
	})
	for _, server := range []string{"s", "127-0-0-1", "127-0-0-1-2"} {
		f.expect(t, server+"_grow", "", "grown")
		within(t, "the client is notified", f.changed)
		eventually(t, "the new tool is listed", func() bool { return slices.Contains(f.tools(t), server+"_grown") })
		f.expect(t, server+"_grown", "", "I am new")
		f.expect(t, server+"_shrink", "", "shrunk")
		within(t, "the client is notified", f.changed)
		eventually(t, "the tools are gone", func() bool {
			return !slices.Contains(f.tools(t), server+"_grown") && !slices.Contains(f.tools(t), server+"_pid")
		})
	}
}

func TestPromptsAndResourcesAreServed(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("a", "normal"), stdio("b", "normal")}})
	prompt, err := f.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "b_greet",
		Arguments: map[string]string{"who": "Ada"}})
	if err != nil || prompt.Messages[0].Content.(*mcp.TextContent).Text != "Greet Ada" {
		t.Errorf("the prompt is %+v, %v", prompt, err)
	}
	var uris []string
	for resource, err := range f.client.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		uris = append(uris, resource.Name+" "+resource.URI)
	}
	if want := []string{"a_one parley://a/note://one", "b_one parley://b/note://one"}; !slices.Equal(uris, want) {
		t.Errorf("the resources are %q", uris)
	}
	link, err := f.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "b_link", Arguments: text{}})
	if err != nil {
		t.Fatal(err)
	}
	for uri, want := range map[string]string{link.Content[0].(*mcp.ResourceLink).URI: "note://one",
		"parley://a/note://any/two": "note://any/two"} {
		read, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil || read.Contents[0].URI != uri || read.Contents[0].Text != "this is "+want {
			t.Errorf("%s is %+v, %v", uri, read, err)
		}
	}
	if _, err := f.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note://one"}); err == nil {
		t.Error("a resource is served without the name of its server")
	}
}

func TestAStdioServerGetsItsEnvironment(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{
		stdio("s", "normal", session.EnvVar{Name: "PLAIN", Value: "plain"}, session.EnvVar{Name: "SECRET", ValueFile: "key"}),
	}}, func(o *router.Options) {
		o.Env, o.Mask = []string{"OWN=own"}, func(text string) string { return text }
	})
	f.expect(t, "s_env", "PLAIN", "plain")
	f.expect(t, "s_env", "SECRET", apiKey)
	f.expect(t, "s_env", "OWN", "own")
	f.expect(t, "s_env", "HOME", "")
}

func TestAStdioServerGetsASecretUnchanged(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal", session.EnvVar{Name: "SECRET",
		ValueFile: "file"})}},
		func(o *router.Options) { o.Value = func(string) string { return " begins\nends \n" } })
	f.expect(t, "s_env", "SECRET", " begins\nends \n")
}

func TestStoppingTheRouterStopsItsServers(t *testing.T) {
	t.Parallel()
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal"), stdio("mute", "mute")}},
		func(o *router.Options) { o.ConnectTimeout = 15 * time.Second })
	pid, err := f.call(t, "s_pid", "")
	if err != nil {
		t.Fatal(err)
	}
	f.stop()
	if err := syscall.Kill(number(t, pid), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the server still runs: %v", err)
	}
}

func TestOnlyRequestsCountAsActivity(t *testing.T) {
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("s", "normal")}})
	before := f.busy.Load()
	if err := f.client.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := f.busy.Load(); got != before {
		t.Error("a ping counts")
	}
	f.expect(t, "s_echo", "a", "a")
	if got := f.busy.Load(); got != before+1 {
		t.Errorf("a call counts %d times", got-before)
	}
}
