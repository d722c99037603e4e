// Package acp speaks the Agent Client Protocol with an agent: JSON-RPC 2.0, one message a line, on the agent's standard
// input and output. What an agent tells is handed on as it came, so that what is new in the protocol is not misread as
// something old.
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

// maxLine bounds what an agent may say at once: a file of some megabytes, or an image.
const maxLine = 32 << 20

// The codes of JSON-RPC that are used here.
const (
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
)

// ErrClosed is why a call has no answer: the agent is gone.
var ErrClosed = errors.New("the agent closed the connection")

// Error is an answer that says what went wrong.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error is the message, and the details that many agents have beside a message that says nothing.
func (e *Error) Error() string {
	var data struct {
		Details string `json:"details"`
	}
	if json.Unmarshal(e.Data, &data) == nil && data.Details != "" {
		return e.Message + ": " + data.Details
	}
	return e.Message
}

// Handler is told what the agent says of its own accord.
type Handler interface {
	// Update is called with each session/update, one after the other, and before the answer to a call that follows it.
	Update(params json.RawMessage)
	// Permission answers session/request_permission. ctx ends with the connection.
	Permission(ctx context.Context, params json.RawMessage) (any, error)
	// Noise is a line that is no message, such as a log's.
	Noise(line string)
}

// Conn is a connection with an agent.
type Conn struct {
	handler Handler
	ctx     context.Context
	cancel  context.CancelFunc

	// writing is a lock of its own: an agent that does not read must not keep what it says from being read.
	writing sync.Mutex
	out     io.Writer

	mu      sync.Mutex
	next    int64
	pending map[int64]chan<- message
	closed  error
}

type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// Connect to an agent that reads from out and writes to in. It ends when in does.
func Connect(in io.Reader, out io.Writer, handler Handler) *Conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{handler: handler, out: out, ctx: ctx, cancel: cancel, pending: map[int64]chan<- message{}}
	go c.read(in)
	return c
}

// Done is closed when the connection ended.
func (c *Conn) Done() <-chan struct{} { return c.ctx.Done() }

// Call a method and wait for its answer.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	answer := make(chan message, 1)
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return c.closed
	}
	c.next++
	id := c.next
	c.pending[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pending, id)
	}()
	if err := c.send(json.RawMessage(fmt.Sprint(id)), method, params); err != nil {
		return err
	}
	select {
	case got, open := <-answer:
		switch {
		case !open:
			return c.err()
		case got.Error != nil:
			return got.Error
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(got.Result, result); err != nil {
			return fmt.Errorf("the agent's answer to %s cannot be read: %w", method, err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Notify the agent of something that it does not answer.
func (c *Conn) Notify(method string, params any) error { return c.send(nil, method, params) }

func (c *Conn) send(id json.RawMessage, method string, params any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return c.write(message{ID: id, Method: method, Params: text})
}

func (c *Conn) write(m message) error {
	m.Version = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return err
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

func (c *Conn) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// read what the agent says until it says no more.
func (c *Conn) read(in io.Reader) {
	reader := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(reader)
		if err != nil {
			c.close(err)
			return
		}
		c.take(line)
	}
}

func (c *Conn) close(reason error) {
	if errors.Is(reason, io.EOF) {
		reason = ErrClosed
	}
	c.mu.Lock()
	c.closed = reason
	for id, answer := range c.pending {
		close(answer)
		delete(c.pending, id)
	}
	c.mu.Unlock()
	c.cancel()
}

func (c *Conn) take(line []byte) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return
	}
	var m message
	if err := json.Unmarshal(line, &m); err != nil || m.Method == "" && m.ID == nil {
		c.handler.Noise(string(line))
		return
	}
	switch {
	case m.Method == "":
		c.answered(m)
	case m.Method == MethodUpdate:
		c.handler.Update(m.Params)
	case m.ID == nil: // another notification, of which nothing depends on
	case m.Method == MethodPermission:
		// A person may take long to answer; the agent goes on to tell meanwhile.
		go c.answer(m, c.handler.Permission)
	default:
		_ = c.write(message{ID: m.ID, Error: &Error{Code: codeMethodNotFound, Message: "this client does not serve " + m.Method}})
	}
}

func (c *Conn) answered(m message) {
	var id int64
	if json.Unmarshal(m.ID, &id) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, waits := c.pending[id]; waits {
		delete(c.pending, id)
		answer <- m
	}
}

func (c *Conn) answer(m message, serve func(context.Context, json.RawMessage) (any, error)) {
	result, err := serve(c.ctx, m.Params)
	if err != nil {
		_ = c.write(message{ID: m.ID, Error: &Error{Code: codeInvalidParams, Message: err.Error()}})
		return
	}
	text, err := json.Marshal(result)
	if err == nil {
		_ = c.write(message{ID: m.ID, Result: text}) // an agent that is gone needs no answer
	}
}

// readLine reads a line of any length up to maxLine. What follows the last line end is no message.
func readLine(reader *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("the agent sent a line of more than %d bytes", maxLine)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
