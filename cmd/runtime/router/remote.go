package router

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
)

func (r *Router) remote(server session.RemoteServer,
	transport func(endpoint string, base http.RoundTripper) mcp.Transport) dialer {
	return func(context.Context) (*link, error) {
		endpoint := httpURL(server.URL)
		base := &transientErrors{RoundTripper: boundedAnswers{r.bearer(endpoint, server)}}
		return &link{transport: transport(endpoint, base), transient: base.seen.Load, cut: func() {}}, nil
	}
}

func sse(endpoint string, base http.RoundTripper) mcp.Transport {
	return &mcp.SSEClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: base}, MaxEventSize: mcp.DefaultMaxEventSize,
	}
}

func (r *Router) streamable(endpoint string, base http.RoundTripper) mcp.Transport {
	client := &http.Client{Transport: optionalStream{base, r.options.StreamTimeout}}
	return &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: client, MaxEventSize: mcp.DefaultMaxEventSize}
}

// httpURL returns a server's HTTP URL. MCP does not use WebSockets, so ws and wss mean http and
// https.
func httpURL(address string) string {
	for from, to := range map[string]string{"ws://": "http://", "wss://": "https://"} {
		if rest, ok := strings.CutPrefix(address, from); ok {
			return to + rest
		}
	}
	return address
}

func (r *Router) bearer(endpoint string, server session.RemoteServer) http.RoundTripper {
	key := ""
	if server.APIKeyFile != "" {
		key = r.options.Key(server.APIKeyFile)
	}
	origin, err := url.Parse(endpoint)
	if key == "" || err != nil {
		return http.DefaultTransport
	}
	return bearer{key: key, origin: origin}
}

// bearer sends the key to its server, but not to the targets of redirects.
type bearer struct {
	key    string
	origin *url.URL
}

func (b bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme == b.origin.Scheme && request.URL.Host == b.origin.Host {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+b.key)
	}
	return http.DefaultTransport.RoundTrip(request)
}

// transientErrors records whether a server was unreachable or responded with a transient error.
type transientErrors struct {
	http.RoundTripper
	seen atomic.Bool
}

func (t *transientErrors) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	switch {
	case err != nil && request.Context().Err() == nil:
		t.seen.Store(true)
	case err == nil && (response.StatusCode == http.StatusTooManyRequests ||
		response.StatusCode >= http.StatusInternalServerError):
		t.seen.Store(true)
	}
	return response, err
}

// boundedAnswers rejects oversized responses. The SDK limits only the size of events and reads
// every other response completely.
type boundedAnswers struct{ http.RoundTripper }

func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "text/event-stream" {
		response.Body = &boundedBody{ReadCloser: response.Body}
	}
	return response, nil
}

type boundedBody struct {
	io.ReadCloser
	read int
}

func (b *boundedBody) Read(text []byte) (int, error) {
	n, err := b.ReadCloser.Read(text)
	if b.read += n; b.read > mcp.DefaultMaxEventSize {
		return 0, fmt.Errorf("answers with more than %d MiB", mcp.DefaultMaxEventSize>>20)
	}
	return n, err
}

// urlPattern matches a URL, with or without quotes. It captures the scheme and the host.
var urlPattern = regexp.MustCompile(
	`("https?://)(?:[^/?#\s"]*@)?([^/?#\s"\\]+)(?:\\.|[^"\\])*|(https?://)(?:[^/?#\s"]*@)?([^/?#\s"]+)[^\s"]*`)

// describe returns an error's text without secrets. A URL in the text may contain an unknown key,
// so only its scheme and host remain.
func (r *Router) describe(err error) string {
	// Mask before URLs are shortened, because a truncated secret would not be recognized. Mask
	// again afterwards, because a shortened URL may be a secret.
	return r.options.Mask(urlPattern.ReplaceAllString(r.options.Mask(err.Error()), "$1$2$3$4"))
}

// optionalStream responds with status 405 if the server does not open the notification stream in
// time. The SDK then continues without the stream. Otherwise, it would wait forever.
type optionalStream struct {
	http.RoundTripper
	timeout time.Duration
}

func (o optionalStream) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return o.RoundTripper.RoundTrip(request)
	}
	ctx, cancel := context.WithCancel(request.Context())
	context.AfterFunc(request.Context(), cancel)
	timer := time.AfterFunc(o.timeout, cancel)
	response, err := o.RoundTripper.RoundTrip(request.WithContext(ctx))
	if !timer.Stop() && request.Context().Err() == nil {
		if response != nil {
			_ = response.Body.Close()
		}
		return &http.Response{
			Status: "405 Method Not Allowed", StatusCode: http.StatusMethodNotAllowed, Proto: "HTTP/1.1", ProtoMajor: 1,
			ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: request,
		}, nil
	}
	return response, err
}
