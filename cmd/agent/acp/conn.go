// Package acp is the agent's side of the Agent Client Protocol: JSON-RPC 2.0, a message a line.
//
// It keeps updates as the JSON that was sent, because a session that is loaded tells them again to the byte.
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

// maxLine bounds a message. Images travel inside, as base64.
const maxLine = 64 << 20

// Codes of JSON-RPC errors.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeNoMethod       = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// Error is told to the client.
type Error struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *ErrorData `json:"data,omitempty"`
}

// ErrorData says what kind of error it is, for programs.
type ErrorData struct {
	Kind string `json:"kind,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Handler answers the client. Its methods are called in the order of the messages; the work that Request returns is done
// on a goroutine of its own. So a turn is known as soon as its prompt was read, and a cancel that follows finds it.
type Handler interface {
	Request(ctx context.Context, method string, params json.RawMessage) (work func() (any, error))
	Notification(method string, params json.RawMessage)
}

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// Conn is a connection with a client.
type Conn struct {
	in *bufio.Reader

	writing sync.Mutex
	out     io.Writer

	mu      sync.Mutex
	next    int
	waiting map[string]chan message
}

// NewConn makes a connection; Serve reads from it.
func NewConn(in io.Reader, out io.Writer) *Conn {
	return &Conn{in: bufio.NewReaderSize(in, 64<<10), out: out, waiting: map[string]chan message{}}
}

// Serve reads until the client is gone.
func (c *Conn) Serve(ctx context.Context, h Handler) error {
	for {
		line, err := c.line()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			if err := c.write(message{ID: json.RawMessage("null"), Error: &Error{Code: CodeParse, Message: "the line is not JSON"}}); err != nil {
				return err
			}
			continue
		}
		switch {
		case m.Method == "":
			c.answered(m)
		case m.ID == nil:
			h.Notification(m.Method, m.Params)
		default:
			go c.handle(m.ID, h.Request(ctx, m.Method, m.Params))
		}
	}
}

func (c *Conn) line() ([]byte, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("a message of more than %d MiB", maxLine>>20)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func (c *Conn) handle(id json.RawMessage, work func() (any, error)) {
	result, err := work()
	answer := message{ID: id}
	if err == nil {
		answer.Result, err = json.Marshal(result)
	}
	if err != nil {
		answer.Error = asError(err)
	}
	_ = c.write(answer) // a client that is gone is noticed by the reader
}

func asError(err error) *Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return known
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

func (c *Conn) answered(m message) {
	c.mu.Lock()
	waiting, ok := c.waiting[string(m.ID)]
	delete(c.waiting, string(m.ID))
	c.mu.Unlock()
	if ok {
		waiting <- m
	}
}

func (c *Conn) write(m message) error {
	m.JSONRPC = "2.0"
	line, err := encode(m)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err = c.out.Write(line)
	return err
}

// encode writes a line, without the escapes that are for HTML.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return b.Bytes(), err
}

// Notify sends a notification.
func (c *Conn) Notify(method string, params any) error {
	encoded, err := encode(params)
	if err != nil {
		return err
	}
	return c.write(message{Method: method, Params: encoded})
}

// Call asks the client and waits for its answer.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	encoded, err := encode(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	c.mu.Lock()
	c.next++
	id := fmt.Sprint(c.next)
	c.waiting[id] = answer
	c.mu.Unlock()
	if err := c.write(message{ID: json.RawMessage(id), Method: method, Params: encoded}); err != nil {
		return err
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return m.Error
		}
		return json.Unmarshal(m.Result, result)
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return ctx.Err()
	}
}
