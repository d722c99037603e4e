package live

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// dialTimeout limits the time to connect to a session. headTimeout limits the wait for the
	// start of its response.
	dialTimeout = 3 * time.Second
	headTimeout = 12 * time.Second
	// idleTimeout limits the pause between two parts of a session's response. In that time, a
	// session sends at least two keep-alive comments on an idle stream.
	idleTimeout = 40 * time.Second
	// MaxResponse limits the bytes of an event or a response of a session. A correct session stays
	// below this limit, even if an event contains a large file twice: before and after a change.
	MaxResponse = 17 << 20
)

// These are the responses to a user whose request the session cannot answer.
var (
	NotRunning   = answer.Refuse(http.StatusConflict, "The conversation is not running: start it first")
	Starting     = answer.Later(http.StatusServiceUnavailable, "The session is starting; retry later", time.Second)
	unresponsive = answer.Later(http.StatusServiceUnavailable, "The session does not answer; retry later", 2*time.Second)
	// Unreachable means that no connection to the session could be opened, so the session received
	// nothing.
	Unreachable = answer.Later(http.StatusServiceUnavailable, "The session does not answer; retry later", 2*time.Second)
	// Over means that the session is ending and no longer accepts messages.
	Over         = answer.Refuse(http.StatusConflict, session.Over)
	invalidEvent = answer.Later(http.StatusServiceUnavailable, "The session sent an event without a valid ID; retry later",
		2*time.Second)
	tooLarge = answer.Refuse(http.StatusRequestEntityTooLarge, "The session's response is too large")
)

// Sessions sends requests to running sessions. It does not trust their responses, because a user
// may have chosen the image.
type Sessions struct {
	signer      *Signer
	client      *http.Client
	port        int
	idleTimeout time.Duration
}

// NewSessions returns a client that authenticates with tokens of a signer.
func NewSessions(signer *Signer) *Sessions {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		DialContext: dialer.DialContext,
		DialTLSContext: func(ctx context.Context, network, host string) (net.Conn, error) {
			return dialSession(ctx, signer, dialer, network, host)
		},
		ResponseHeaderTimeout: headTimeout, MaxIdleConnsPerHost: 2, MaxIdleConns: 200, IdleConnTimeout: 30 * time.Second,
		MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
	}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Sessions{signer: signer, client: &http.Client{Transport: transport, CheckRedirect: refuse}, port: session.Port,
		idleTimeout: idleTimeout}
}

// hostOf returns the host for the URL of a session that has a certificate. The host contains the
// Conversation's UID and the pod's address, so that the HTTP client never reuses a connection for
// another session.
func hostOf(uid string, address net.IP) string { return uid + "." + hex.EncodeToString(address.To16()) }

// dialSession connects to a session, and verifies that the session's certificate is for the UID in
// host. The argument host is a result of hostOf, with a port.
func dialSession(ctx context.Context, signer *Signer, dialer *net.Dialer, network, host string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return nil, err
	}
	uid, text, _ := strings.Cut(name, ".")
	address, err := hex.DecodeString(text)
	if err != nil {
		return nil, err
	}
	authorities, err := signer.Authorities()
	if err != nil {
		return nil, err
	}
	secured := tls.Dialer{NetDialer: dialer, Config: session.ClientTLS(uid, authorities)}
	return secured.DialContext(ctx, network, net.JoinHostPort(net.IP(address).String(), port))
}

// Call is a request to a session.
type Call struct {
	Method, Path string
	Query        url.Values
	Body         io.Reader
	// Type is the Content-Type of the body. Key is the client's idempotency key.
	Type, Key string
	// Held counts the bytes of the response in memory. If it is nil, they are not counted.
	Held *limits.Hold
}

// Running returns nil if a conversation's session is running, else the refusal for a request.
func Running(c *v1alpha1.Conversation) error {
	switch {
	case c.Status.State == v1alpha1.StateRunning && c.DeletionTimestamp == nil:
		return nil
	case c.Status.State == v1alpha1.StateStopped || c.DeletionTimestamp != nil:
		return NotRunning
	}
	return Starting
}

// Ask sends a request to the session of a conversation. It returns a response with a
// success status, or an error. The caller must close the body.
func (s *Sessions) Ask(ctx context.Context, c *v1alpha1.Conversation, call Call) (*http.Response, error) {
	if err := Running(c); err != nil {
		return nil, err
	}
	address := net.ParseIP(c.Status.PodIP)
	if address == nil {
		return nil, unresponsive
	}
	token, err := s.signer.Token(string(c.UID))
	if err != nil {
		return nil, answer.Later(http.StatusServiceUnavailable, "The facade has no signing key yet; retry later",
			5*time.Second)
	}
	ctx, cancel := context.WithCancel(ctx)
	port := strconv.Itoa(s.port)
	target := url.URL{Scheme: "http", Host: net.JoinHostPort(address.String(), port), Path: call.Path,
		RawQuery: call.Query.Encode()}
	// If the session has a certificate, the manager writes an https URL into the status. The facade
	// then never falls back to http. Only the manager can write the status, so a user cannot make
	// the facade use http.
	if strings.HasPrefix(c.Status.URL, "https:") {
		target.Scheme, target.Host = "https", net.JoinHostPort(hostOf(string(c.UID), address), port)
	}
	request, err := http.NewRequestWithContext(ctx, call.Method, target.String(), call.Body)
	if err != nil {
		cancel()
		return nil, err
	}
	request.Header.Set(session.TokenHeader, token)
	if call.Type != "" {
		request.Header.Set("Content-Type", call.Type)
	}
	if call.Key != "" {
		request.Header.Set(session.IdempotencyHeader, call.Key)
	}
	response, err := s.client.Do(request)
	if err != nil {
		cancel()
		if failed, is := errors.AsType[*net.OpError](err); is && failed.Op == "dial" {
			return nil, Unreachable
		}
		return nil, unresponsive
	}
	response.Body = &Guarded{response.Body, cancel, s.idleTimeout}
	switch code := response.StatusCode; {
	case code == http.StatusOK:
		return response, nil
	case code == http.StatusServiceUnavailable:
		err = Starting
	case code < http.StatusBadRequest, code == http.StatusUnauthorized, code >= http.StatusInternalServerError:
		err = unresponsive
	default:
		err = refusalOf(response)
	}
	_ = response.Body.Close()
	return nil, err
}

// Guarded is a response body. A Read that gets no data within IdleTimeout cancels the request. The
// time between two calls of Read does not count.
type Guarded struct {
	io.ReadCloser
	Cancel      context.CancelFunc
	IdleTimeout time.Duration
}

func (g *Guarded) Read(p []byte) (int, error) {
	timer := time.AfterFunc(g.IdleTimeout, g.Cancel)
	defer timer.Stop()
	return g.ReadCloser.Read(p)
}

// Close also cancels the request.
func (g *Guarded) Close() error {
	g.Cancel()
	return g.ReadCloser.Close()
}

func refusalOf(response *http.Response) error {
	var body struct {
		Detail *string `json:"detail"`
		Error  *string `json:"error"`
	}
	if json.NewDecoder(io.LimitReader(response.Body, 16<<10)).Decode(&body) != nil {
		return unresponsive
	}
	switch {
	case response.StatusCode == http.StatusConflict && body.Detail != nil && *body.Detail == session.Over:
		return Over
	case body.Detail != nil:
		return answer.Refuse(response.StatusCode, *body.Detail)
	case body.Error != nil:
		return &answer.Refusal{Code: response.StatusCode, Body: map[string]string{"error": *body.Error}}
	}
	return unresponsive
}

// Read returns a session's JSON response of at most limit bytes.
func (s *Sessions) Read(ctx context.Context, c *v1alpha1.Conversation, call Call, limit int64) (json.RawMessage,
	error) {
	response, err := s.Ask(ctx, c, call)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(call.Held.Reader(ctx, io.LimitReader(response.Body, limit+1)))
	switch {
	case err != nil:
		return nil, refusalOr(err, unresponsive)
	case int64(len(text)) > limit:
		return nil, tooLarge
	case !json.Valid(text):
		return nil, unresponsive
	}
	return text, nil
}

func refusalOr(err, other error) error {
	if refusal, is := errors.AsType[*answer.Refusal](err); is {
		return refusal
	}
	return other
}

// Event is an event of a stream, or a preview. A preview has no ID.
type Event struct {
	ID      int
	Data    json.RawMessage
	Preview bool
}

// Follow calls take() for each event after the given ID and, if previews is set, for
// each preview. It calls alive() for each keep-alive comment. It ends when one of these
// calls fails, when the session ends, or when the user's limit has no room for a large event.
func (s *Sessions) Follow(ctx context.Context, c *v1alpha1.Conversation, after int, previews bool,
	held *limits.Hold, take func(Event) error, alive func() error) error {
	query := url.Values{"after": {strconv.Itoa(after)}}
	if previews {
		query.Set(session.PreviewsParameter, "true")
	}
	response, err := s.Ask(ctx, c, Call{Method: http.MethodGet, Path: session.StreamPath, Query: query})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	defer held.Release()
	lines := bufio.NewReaderSize(response.Body, 32<<10)
	event := Event{ID: -1}
	for {
		line, err := readLine(ctx, lines, held)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		switch name, value, _ := bytes.Cut(line, []byte(": ")); string(name) {
		case "id":
			if event.ID, err = strconv.Atoi(string(value)); err != nil {
				return invalidEvent
			}
		case "event":
			event.Preview = string(value) == session.PreviewEvent
		case "data":
			event.Data = value
		case "":
			if len(line) > 0 { // a comment
				err = alive()
			} else if event.Data != nil {
				if !event.Preview || previews { // a third-party runtime may send unrequested previews
					err = take(event)
				}
				event = Event{ID: -1}
				held.Release()
			}
		}
		if err != nil {
			return err
		}
	}
}

// readLine reads a line. It waits if the user exceeds the read rate of Hold.Pace. The line counts
// towards the user's limit on memory only if it is longer than the reader's buffer.
func readLine(ctx context.Context, reader *bufio.Reader, held *limits.Hold) ([]byte, error) {
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		line = append(line, part...)
		if err := held.Pace(ctx, len(part)); err != nil {
			return nil, err
		}
		switch {
		case len(line) > MaxResponse:
			return nil, errors.New("an event is too large")
		case errors.Is(err, bufio.ErrBufferFull):
			if err := held.Take(int64(len(part))); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}
