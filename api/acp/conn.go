// Package acp implements the Agent Client Protocol (ACP), for agents and for their clients. The
// protocol is JSON-RPC 2.0 with one message per line. The package passes updates on as JSON text.
// It therefore cannot misread a new kind of update, and a replayed update is identical byte by
// byte.
package acp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxLine bounds a message, in bytes. A message may contain a file of several megabytes, or images
// in base64.
const maxLine = 64 << 20

// maxRequests is the maximum number of the other side's requests that are in flight.
const maxRequests = 256

// Codes of JSON-RPC errors.
const (
	CodeInvalidRequest = -32600
	CodeNoMethod       = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// ErrClosed is the error that calls return after the connection has closed.
var ErrClosed = errors.New("the connection is closed")

// Error is the error of a JSON-RPC response.
type Error struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *ErrorData `json:"data,omitempty"`
}

// ErrorData describes an error. Programs distinguish errors by Kind. If an agent sends only a
// generic message, Details contains the actual error text.
type ErrorData struct {
	Kind    string `json:"kind,omitempty"`
	Details string `json:"details,omitempty"`
}

// UnmarshalJSON accepts any JSON value, because the protocol does not define the data of an error.
func (d *ErrorData) UnmarshalJSON(text []byte) error {
	var fields struct{ Kind, Details any }
	_ = json.Unmarshal(text, &fields) // other JSON types have no fields
	d.Kind, _ = fields.Kind.(string)
	d.Details, _ = fields.Details.(string)
	return nil
}

func (e *Error) Error() string {
	if e.Data != nil && e.Data.Details != "" {
		return e.Message + ": " + e.Data.Details
	}
	return e.Message
}

// NoMethod returns a function that fails with CodeNoMethod. Handlers return it for an unknown
// method.
func NoMethod(method string) func() (any, error) {
	return func() (any, error) { return nil, &Error{Code: CodeNoMethod, Message: "unknown method " + method} }
}

// Handler handles the other side's requests and notifications. Serve processes all messages,
// including responses, in the order of their arrival. It waits until Request returns, and then runs
// the returned function on a new goroutine. If Request registers a turn, a later notification can
// therefore cancel the turn.
type Handler interface {
	Request(ctx context.Context, method string, params json.RawMessage) (work func() (any, error))
	Notification(method string, params json.RawMessage)
	// Noise receives a line that is not a message, such as a log line.
	Noise(line string)
}

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// Conn is a connection to an agent or a client.
type Conn struct {
	in   *bufio.Reader
	done chan struct{}
	// handled contains an entry for each request in flight.
	handled chan struct{}

	// writing is locked during each write to out. It is separate from mu, so that Serve can read
	// messages even while a write waits for the other side.
	writing sync.Mutex
	out     io.Writer

	mu      sync.Mutex
	next    int
	waiting map[string]chan<- message
	closed  error
}

// NewConn creates a connection; Serve reads from it.
func NewConn(in io.Reader, out io.Writer) *Conn {
	return &Conn{in: bufio.NewReaderSize(in, 64<<10), out: out, done: make(chan struct{}), handled: make(chan struct{},
		maxRequests), waiting: map[string]chan<- message{}}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Serve reads messages until the connection closes. It passes ctx to the handler's method Request.
func (c *Conn) Serve(ctx context.Context, h Handler) error {
	for {
		line, err := c.line()
		if err != nil {
			c.close(err)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := c.take(ctx, h, bytes.TrimSpace(line)); err != nil {
			c.close(err)
			return err
		}
	}
}

func (c *Conn) take(ctx context.Context, h Handler, line []byte) error {
	var m message
	switch err := json.Unmarshal(line, &m); {
	case len(line) == 0:
	case err != nil || m.Method == "" && m.ID == nil:
		h.Noise(string(line))
	case m.Method == "":
		c.answered(m)
	case m.ID == nil:
		h.Notification(m.Method, m.Params)
	default:
		// If maxRequests requests are in flight, close the connection. Do not send an error response: if
		// the other side does not read it, the write blocks this loop.
		select {
		case c.handled <- struct{}{}:
		default:
			return fmt.Errorf("the other side has more than %d requests in flight", maxRequests)
		}
		work := h.Request(ctx, m.Method, m.Params)
		go func() {
			defer func() { <-c.handled }()
			c.handle(m.ID, work)
		}()
	}
	return nil
}

// line reads a line of up to maxLine bytes. At the end of the input, it returns an incomplete line
// with io.EOF. Callers drop that line.
func (c *Conn) line() ([]byte, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("the other side sent a message of more than %d MiB", maxLine>>20)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func (c *Conn) close(reason error) {
	if errors.Is(reason, io.EOF) {
		reason = ErrClosed
	}
	c.mu.Lock()
	c.closed = reason
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
	c.mu.Unlock()
	close(c.done)
}

func (c *Conn) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *Conn) handle(id json.RawMessage, work func() (any, error)) {
	result, err := work()
	answer := message{ID: id}
	if err == nil {
		answer.Result, err = Encode(result)
	}
	if known, ok := errors.AsType[*Error](err); ok {
		answer.Error = known
	} else if err != nil {
		answer.Error = &Error{Code: CodeInternal, Message: err.Error()}
	}
	// If the response is too large, send an error response instead. Other write errors are ignored,
	// because Serve notices that the connection is closed.
	if refused, ok := errors.AsType[*Error](c.write(answer)); ok {
		_ = c.write(message{ID: id, Error: refused})
	}
}

func (c *Conn) answered(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, waits := c.waiting[string(m.ID)]; waits {
		delete(c.waiting, string(m.ID))
		answer <- m
	}
}

// write sends a message. It refuses a message of more than maxLine bytes with an *Error, because
// the other side closes the connection when it reads such a message.
func (c *Conn) write(m message) error {
	m.JSONRPC = "2.0"
	line, err := Encode(m)
	if err != nil {
		return err
	}
	if len(line) >= maxLine {
		return &Error{Code: CodeInternal, Message: fmt.Sprintf("a message has more than %d MiB", maxLine>>20)}
	}
	if err := c.err(); err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

// Encode encodes a value on one line, without HTML escapes.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Notify sends a notification, which has no response.
func (c *Conn) Notify(method string, params any) error { return c.send(nil, method, params) }

func (c *Conn) send(id json.RawMessage, method string, params any) error {
	encoded, err := Encode(params)
	if err != nil {
		return err
	}
	return c.write(message{ID: id, Method: method, Params: encoded})
}

// Call calls a method and waits for the response.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	request, err := c.Send(method, params)
	if err != nil {
		return err
	}
	return request.Answer(ctx, result)
}

// Request is a request that was sent.
type Request struct {
	conn       *Conn
	id, method string
	answer     chan message
}

// Send sends a request and does not wait for the response. The other side gets the request before
// all messages that are sent later.
func (c *Conn) Send(method string, params any) (*Request, error) {
	answer := make(chan message, 1)
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return nil, c.closed
	}
	c.next++
	r := &Request{conn: c, id: fmt.Sprint(c.next), method: method, answer: answer}
	c.waiting[r.id] = answer
	c.mu.Unlock()
	if err := c.send(json.RawMessage(r.id), method, params); err != nil {
		r.forget()
		return nil, err
	}
	return r, nil
}

func (r *Request) forget() {
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	delete(r.conn.waiting, r.id)
}

// Answer waits for the response to the request.
func (r *Request) Answer(ctx context.Context, result any) error {
	defer r.forget()
	select {
	case got, open := <-r.answer:
		switch {
		case !open:
			return r.conn.err()
		case got.Error != nil:
			return got.Error
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(got.Result, result); err != nil {
			return fmt.Errorf("decode the answer to %s: %w", r.method, err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
