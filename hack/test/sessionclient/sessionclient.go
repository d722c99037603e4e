// Package sessionclient calls the HTTP endpoints of a running session.
package sessionclient

import (
	"context"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// KeyHeader is the HTTP header for a session's key.
const KeyHeader = "X-Session-API-Key"

// WithHeader returns an HTTP client that sends a header with every request.
func WithHeader(name, value string) *http.Client {
	return &http.Client{Transport: header{name, value}}
}

type header struct{ name, value string }

func (h header) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(h.name, h.value)
	return http.DefaultTransport.RoundTrip(r)
}

// Tools connects to the session's tools as an MCP client.
func Tools(ctx context.Context, endpoint string, client *http.Client) (*mcp.ClientSession, error) {
	return mcp.NewClient(&mcp.Implementation{Name: "sessionclient", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: client}, nil)
}
