package router_test

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
)

// protocolCounter is a tool server that counts its connections. The field handshakes counts
// connections with the older protocol. The field newer counts connections with the newer protocol.
type protocolCounter struct {
	next http.Handler
	// If refuses is set, the server refuses connections with the older protocol.
	refuses atomic.Bool
	// If forgets is set, the server rejects the client's session at the next call.
	forgets           atomic.Bool
	handshakes, newer atomic.Int32
}

func (g *protocolCounter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	handshake := bytes.Contains(body, []byte(`"method":"initialize"`))
	if handshake {
		g.handshakes.Add(1)
	}
	if bytes.Contains(body, []byte(`"method":"server/discover"`)) {
		g.newer.Add(1)
	}
	switch {
	case bytes.Contains(body, []byte(`"method":"tools/call"`)) && g.forgets.CompareAndSwap(true, false):
		http.NotFound(w, r)
	case handshake && g.refuses.Load():
		http.Error(w, "no", http.StatusBadRequest)
	default:
		g.next.ServeHTTP(w, r)
	}
}

func (g *protocolCounter) reconnect(t *testing.T, f *fixture) {
	t.Helper()
	restarts := f.health(t, "127-0-0-1").Restarts
	g.handshakes.Store(0)
	g.newer.Store(0)
	g.forgets.Store(true)
	if got, err := f.call(t, "127-0-0-1_echo", "lost"); err == nil {
		t.Errorf("a server that lost the session answers %q", got)
	}
	eventually(t, "it is connected again", func() bool { return f.health(t, "127-0-0-1").Restarts > restarts })
}

func TestReconnectUsesTheProtocolOfTheLastConnection(t *testing.T) {
	for name, refuses := range map[string]bool{"the older protocol": false, "the newer protocol": true} {
		t.Run(name, func(t *testing.T) {
			server := newServer()
			g := &protocolCounter{next: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
				&mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true})}
			g.refuses.Store(refuses)
			f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t, g)}}})
			eventually(t, "it is connected", func() bool {
				return f.health(t,
					"127-0-0-1").State == session.ToolServerConnected
			})
			for range 3 {
				g.reconnect(t, f)
				if refuses && g.handshakes.Load() > 0 || !refuses && g.newer.Load() > 0 {
					t.Errorf("%d handshakes and %d connections with the newer protocol", g.handshakes.Load(), g.newer.Load())
				}
			}
		})
	}
}

func TestReconnectUsesTheNewerProtocolIfTheServerRefusesTheOlder(t *testing.T) {
	server := newServer()
	g := &protocolCounter{next: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true})}
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{{URL: serve(t, g)}}})
	f.expect(t, "127-0-0-1_echo", "before", "before")
	g.refuses.Store(true)
	g.reconnect(t, f)
	f.expect(t, "127-0-0-1_echo", "after", "after")
}
