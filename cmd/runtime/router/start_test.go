package router_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/router"
)

func TestStartWaitsForAServerWithTransientErrors(t *testing.T) {
	for name, fail := range map[string]http.HandlerFunc{
		"a broken connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a gateway error": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "not now",
				http.StatusBadGateway)
		},
		"an unavailable server": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "not now",
				http.StatusServiceUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			normal := streamableHandler()
			f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t,
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if requests.Add(1) <= 2 {
						fail(w, r)
						return
					}
					normal.ServeHTTP(w, r)
				}))}}}, func(o *router.Options) { o.FirstRetry = 20 * time.Millisecond })
			f.expect(t, "127-0-0-1_echo", "in time", "in time")
		})
	}
}

func TestStartDoesNotWaitForAServerWithPermanentErrors(t *testing.T) {
	f := start(t, session.ToolServers{
		SHTTP: []session.RemoteServer{{URL: serve(t, locked(streamableHandler()))}, {URL: serve(t, http.NotFoundHandler())}},
		Stdio: []session.StdioServer{stdio("broken", "broken")},
	}, func(o *router.Options) { o.FirstRetry = time.Hour })
	for _, server := range f.Health() {
		if server.State != session.ToolServerFailed {
			t.Errorf("the health is %+v", server)
		}
	}
}
