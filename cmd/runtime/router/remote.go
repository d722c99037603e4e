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

// remote connects to a server over HTTP.
func (r *Router) remote(server session.RemoteServer,
	transport func(endpoint string, way http.RoundTripper) mcp.Transport) dialer {
	return func(context.Context) (*link, error) {
		endpoint := httpURL(server.URL)
		way := &troubled{RoundTripper: boundedAnswers{r.bearer(endpoint, server)}}
		return &link{transport: transport(endpoint, way), troubled: way.met.Load, cut: func() {}}, nil
	}
}

// sse speaks with a server over server-sent events.
func sse(endpoint string, way http.RoundTripper) mcp.Transport {
	return &mcp.SSEClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: way}, MaxEventSize: mcp.DefaultMaxEventSize,
	}
}

// streamable speaks with a server over streamable HTTP.
func (r *Router) streamable(endpoint string, way http.RoundTripper) mcp.Transport {
	client := &http.Client{Transport: optionalStream{way, r.options.StreamTimeout}}
	return &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: client, MaxEventSize: mcp.DefaultMaxEventSize}
}

// httpURL is the URL to connect to. The protocol knows no web sockets: ws and wss stand for the
// same server over HTTP.
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

// bearer shows a key to the server that it is for, and to none that the server redirects to.
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

// troubled notes where a server cannot be reached, or fails in a way that passes.
type troubled struct {
	http.RoundTripper
	met atomic.Bool
}

func (t *troubled) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	switch {
	case err != nil && request.Context().Err() == nil:
		t.met.Store(true)
	case err == nil && (response.StatusCode == http.StatusTooManyRequests ||
		response.StatusCode >= http.StatusInternalServerError):
		t.met.Store(true)
	}
	return response, err
}

// boundedAnswers refuses answers that are larger than an event may be. The SDK bounds only events,
// and reads any other answer whole.
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

// aURL, between quotes or not. What it captures is the scheme and the host.
var aURL = regexp.MustCompile(
	`("https?://)(?:[^/?#\s"]*@)?([^/?#\s"\\]+)(?:\\.|[^"\\])*|(https?://)(?:[^/?#\s"]*@)?([^/?#\s"]+)[^\s"]*`)

// describe what went wrong without what is secret. Errors of requests hold whole URLs, as text
// where they are wrapped, and the URL of a server may hold its key, of which nobody but the user
// knows that it is one.
func (r *Router) describe(err error) string {
	// Before, since a part of a secret that is a URL is not known as such, and after, since one may
	// be what is left.
	return r.options.Mask(aURL.ReplaceAllString(r.options.Mask(err.Error()), "$1$2$3$4"))
}

// optionalStream goes without the stream of notifications where the server does not open it in
// time, as if the server had said that it has none. The SDK would wait for it for ever.
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
