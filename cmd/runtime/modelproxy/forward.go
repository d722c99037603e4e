package modelproxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"syscall"
	"time"
)

// largestRefusal is how many bytes of an error response are searched for stream_options.
const largestRefusal = 64 << 10

// notForwarded are request headers that contain the agent's key or are meant for the proxy only.
var notForwarded = []string{
	"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Session-Api-Key", "Cookie", "Origin", "Referer",
	"Accept-Encoding", "Content-Length",
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip",
}

// notReturned are response headers that are not forwarded. Content-Length is one of them, because
// masking may change the length. The other headers are meant for the proxy only.
var notReturned = []string{"Content-Length", "Set-Cookie", "Alt-Svc"}

var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// forward sends a call to the endpoint and copies the response to the agent.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, call route, to *target, ask *ask, entry *entry) {
	ctx, cancel := p.context(r.Context(), call)
	defer cancel(nil)
	response, usageAdded, err := p.send(ctx, cancel, r, call, to, ask)
	if err != nil {
		if r.Context().Err() != nil {
			entry.mayCost = true // the endpoint may have used tokens
			return
		}
		entry.failed = true
		if errors.Is(context.Cause(ctx), errSilence) {
			err = fmt.Errorf("no answer for %s", p.options.Silence)
			entry.mayCost = p.options.Limit > 0 // the endpoint may have used tokens
		}
		if !to.mayRecover(err) {
			w.Header().Set("X-Should-Retry", "false") // the SDKs of the providers follow this header
		}
		message := p.mask.Mask(fmt.Sprintf("the model's endpoint %s cannot be reached: %v", to.endpoint.base.Host, err))
		refuse(w, call.wire, http.StatusBadGateway, unreachableType, message)
		return
	}
	to.answered.Store(true)
	defer response.Body.Close()
	if response.StatusCode/100 == 3 {
		message := fmt.Sprintf("the model's endpoint %s answers with a redirect, which is not followed: set llm_base_url to "+
			"the final URL", to.endpoint.base.Host)
		refuse(w, call.wire, http.StatusBadGateway, settingsType, message)
		return
	}
	body, err := decoded(response)
	if err != nil {
		entry.mayCost = response.StatusCode/100 == 2
		refuse(w, call.wire, http.StatusBadGateway, "api_error", fmt.Sprintf(
			"the answer of the model's endpoint %s cannot be read: %v", to.endpoint.base.Host, err))
		return
	}
	entry.failed = isTransient(response.StatusCode)
	p.copyHeaders(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	out := &answer{flusher: http.NewResponseController(w), masked: p.mask.Stream(w), lingers: p.lingers(call)}
	if call.counted && response.StatusCode/100 == 2 {
		kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
		out.meter = newMeter(call.wire, kind == "text/event-stream", entry, response.Header)
		out.settle = func() { p.spend.settle(entry) }
		entry.mayCost = true
		if usageAdded && kind == "text/event-stream" {
			out.filter = &usageFilter{out: out.masked}
		}
	}
	err = out.copy(body)
	entry.complete, entry.received, entry.partial = err == nil, out.received, out.brokeOff()
	if err != nil {
		entry.failed = r.Context().Err() == nil && out.endpointFailed
	}
	if entry.failed && entry.partial && p.spend.bounded() && !entry.hasUsage {
		entry.estimate(len(ask.body), out.received)
	}
	if err != nil {
		// Abort the connection. A truncated response must not look complete to the agent.
		panic(http.ErrAbortHandler)
	}
}

// lingers reports whether the proxy reads the whole response even if the agent disconnects. An
// agent must not be able to avoid the cost by disconnecting before the usage arrives.
func (p *Proxy) lingers(call route) bool { return call.counted && p.spend.bounded() }

// context returns the context of a call to the endpoint. The context ends when the agent
// disconnects or, if the call lingers, Options.Linger later.
func (p *Proxy) context(agent context.Context, call route) (context.Context, context.CancelCauseFunc) {
	if !p.lingers(call) {
		return context.WithCancelCause(agent)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(agent))
	stop := context.AfterFunc(agent, func() {
		select {
		case <-time.After(p.options.Linger):
			cancel(nil)
		case <-ctx.Done():
		}
	})
	return ctx, func(cause error) { stop(); cancel(cause) }
}

var errSilence = errors.New("the endpoint sent nothing for too long")

// isTransient reports whether a call that failed with this status may succeed later. Such a call is
// not counted, because agents repeat it.
func isTransient(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout ||
		status >= http.StatusInternalServerError
}

// mayRecover reports whether a later connection may succeed without a change of the settings. It
// returns false if the host does not exist, if the certificate is not trusted, or if the endpoint
// refuses connections and has never responded.
func (t *target) mayRecover(err error) bool {
	name, ok := errors.AsType[*net.DNSError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	refused := errors.Is(err, syscall.ECONNREFUSED) && !t.answered.Load()
	return !untrusted && !refused && (!ok || !name.IsNotFound)
}

// send sends the call and, for a stream, requests the usage. If the endpoint refuses the request
// for usage, the call is repeated without it.
func (p *Proxy) send(ctx context.Context, cancel context.CancelCauseFunc, r *http.Request, call route, to *target,
	ask *ask) (response *http.Response, usageAdded bool, err error) {
	body := ask.body
	if call.wire == chat && ask.streamed && !ask.usageAsked && !to.usageRefused.Load() {
		body, usageAdded = ask.withUsage(), true
	}
	response, err = p.roundTrip(to.request(ctx, r, call, body), cancel)
	if err != nil || !usageAdded || response.StatusCode != http.StatusBadRequest &&
		response.StatusCode != http.StatusUnprocessableEntity {
		return response, usageAdded, err
	}
	// An error of this read is ignored, because it occurs again when the response is forwarded.
	said, _ := io.ReadAll(io.LimitReader(response.Body, largestRefusal))
	if !bytes.Contains(said, []byte("stream_options")) {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(said), response.Body), response.Body}
		return response, usageAdded, nil
	}
	_ = response.Body.Close()
	response, err = p.roundTrip(to.request(ctx, r, call, ask.body), cancel)
	// If the repeated call succeeds, the proxy no longer requests the usage from this endpoint. The
	// exception is a call with the agent's own stream_options: they may have caused the refusal, and
	// an agent must not be able to stop the requests for usage.
	if err == nil && response.StatusCode/100 == 2 && ask.options == nil {
		to.usageRefused.Store(true)
	}
	return response, false, err
}

// roundTrip sends a request. It cancels the call if the endpoint sends nothing for too long, before
// or during the response.
func (p *Proxy) roundTrip(request *http.Request, cancel context.CancelCauseFunc) (*http.Response, error) {
	silent := func() { cancel(errSilence) }
	defer time.AfterFunc(p.options.Silence, silent).Stop()
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = &idleTimeoutBody{ReadCloser: response.Body, silence: p.options.Silence, cancel: silent}
	return response, nil
}

// idleTimeoutBody is a response body that cancels the call if one read takes too long.
type idleTimeoutBody struct {
	io.ReadCloser
	silence time.Duration
	cancel  func()
}

func (a *idleTimeoutBody) Read(text []byte) (int, error) {
	defer time.AfterFunc(a.silence, a.cancel).Stop()
	return a.ReadCloser.Read(text)
}

func (t *target) request(ctx context.Context, r *http.Request, call route, body []byte) *http.Request {
	// The error is ignored, because each route's method is valid. With a bytes.Reader, Go can
	// resend the body if the endpoint has closed an idle connection.
	out, _ := http.NewRequestWithContext(ctx, r.Method, "", bytes.NewReader(body))
	out.URL, out.Host = t.endpoint.url(call, r.URL.RawQuery), t.endpoint.base.Host
	out.Header = forwardable(r.Header, notForwarded)
	// The proxy reads the usage from the response, so the response must not be compressed.
	out.Header.Set("Accept-Encoding", "identity")
	if call.wire == anthropic && out.Header.Get("Anthropic-Version") == "" {
		out.Header.Set("Anthropic-Version", "2023-06-01")
	}
	switch {
	case t.key == "":
	case call.wire == anthropic:
		out.Header.Set("X-Api-Key", t.key)
	case call.wire == google:
		out.Header.Set("X-Goog-Api-Key", t.key)
	default:
		out.Header.Set("Authorization", "Bearer "+t.key)
	}
	return out
}

// decoded returns the uncompressed response body. Some endpoints ignore Accept-Encoding.
func decoded(response *http.Response) (io.Reader, error) {
	switch encoding := strings.ToLower(response.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return response.Body, nil
	case "gzip":
		response.Header.Del("Content-Encoding")
		return gzip.NewReader(response.Body)
	default:
		return nil, errors.New("it has an unsupported compression, although none was requested")
	}
}

func (p *Proxy) copyHeaders(to, from http.Header) {
	for name, values := range forwardable(from, notReturned) {
		for _, value := range values {
			to.Add(name, p.mask.Mask(value))
		}
	}
}

func forwardable(headers http.Header, excluded []string) http.Header {
	headers = headers.Clone()
	for _, list := range headers["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			headers.Del(textproto.TrimString(name))
		}
	}
	for _, name := range slices.Concat(hopByHop, excluded) {
		headers.Del(name)
	}
	return headers
}

type answer struct {
	flusher *http.ResponseController
	masked  io.WriteCloser
	// meter reads the usage from the response, and settle records it. Both are nil if the call is
	// not counted.
	meter  *meter
	settle func()
	// filter removes a usage event that the agent did not request. It is nil if there is no such
	// event.
	filter *usageFilter
	// lingers is set if the response is read to its end even after the agent disconnected.
	lingers bool
	// received counts the response's bytes. endpointFailed is set if the endpoint dropped the
	// connection.
	received       int
	endpointFailed bool
	ended          bool // the response was read to its end
}

func (a *answer) copy(body io.Reader) error {
	var out io.Writer = a.masked
	if a.filter != nil {
		out = a.filter
	}
	// Flush the headers immediately, because a stream may begin with a pause.
	gone := a.flusher.Flush()
	buffer := make([]byte, 32<<10)
	for {
		if gone != nil && !a.lingers {
			return gone
		}
		n, err := body.Read(buffer)
		a.received += n
		// Record the usage before the agent sees the end of the response.
		if a.meter != nil && a.meter.read(buffer[:n]) {
			a.settle()
		}
		if n > 0 && gone == nil {
			if _, gone = out.Write(buffer[:n]); gone == nil {
				gone = a.flusher.Flush()
			}
		}
		a.ended = err == io.EOF
		switch {
		case err == io.EOF && gone == nil:
			return a.end()
		case err == io.EOF:
			return gone
		case err != nil:
			a.endpointFailed = gone == nil
			return err
		}
	}
}

// brokeOff reports whether a response ended before its usage was complete.
func (a *answer) brokeOff() bool {
	return a.meter != nil && (a.meter.brokeOff || !a.ended && !a.meter.final)
}

func (a *answer) end() error {
	if a.meter != nil {
		a.settle()
	}
	if a.filter != nil {
		if err := a.filter.Close(); err != nil {
			return err
		}
	}
	return a.masked.Close()
}
