// Package socket serves Socket.IO to OpenHands clients, over websockets only. It implements the few
// frames of Engine.IO 4 and Socket.IO 5 that these clients use.
package socket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/internal/deadline"
)

const (
	// pingInterval is the interval of pings. pongTimeout limits the wait for each pong.
	pingInterval = 25 * time.Second
	pongTimeout  = 20 * time.Second
	// writeTimeout limits the time in which the client must read each piece of a message. A slower
	// client is disconnected; it reconnects with the ID of its last event.
	writeTimeout = 30 * time.Second
	// connectTimeout limits the wait for a client's connect packet.
	connectTimeout = 10 * time.Second
	// maxFrame limits the bytes of a frame. Until the client is connected, maxGreeting limits the
	// bytes of a frame, and maxGreetings limits the number of frames.
	maxFrame     = 4 << 20
	maxGreeting  = 16 << 10
	maxGreetings = 4
	// maxActions limits the waiting actions of a client. Actions wait behind an earlier action,
	// which may wait until the session runs.
	maxActions = 16
	// smallFrame is the largest size of a frame that does not count towards the limits on bodies.
	// Pongs and typical actions are smaller.
	smallFrame = 1 << 10
)

// These constants are the types of Engine.IO frames and of Socket.IO packets. A Socket.IO packet is
// inside a message frame of Engine.IO.
const (
	frameOpen, framePing, framePong = "0", "2", "3"
	frameClose                      = "1"
	packetConnect                   = "40"
	packetDisconnect                = "41"
	packetEvent                     = "42"
	packetAck                       = "43"
	packetRefused                   = "44"
)

// These constants are the names of the Socket.IO events. eventOut carries events of the session,
// and eventIn carries events of the user. Old clients use the name eventInOld instead of eventIn.
const (
	eventOut   = "oh_event"
	eventIn    = "oh_user_action"
	eventInOld = "oh_action"
)

// Conversation is the conversation that a client watches. The texts of all its errors are shown to
// users.
type Conversation interface {
	// Backlog visits the existing events after an ID.
	Backlog(ctx context.Context, after int, visit func(live.Event) error) error
	// Follow visits existing and new events after an ID until the session ends.
	Follow(ctx context.Context, after int, visit func(live.Event) error) error
	// Count counts a frame of the user or refuses it.
	Count() error
	// Receive reads a large frame of the user, if the limits on bodies have room for it. Unless it
	// returns an error, the caller must call done() when the frame is no longer used.
	Receive(ctx context.Context, from io.Reader) (frame []byte, done func(), err error)
	// Send sends an action of the user. A message may wait until the session runs. Before this wait,
	// Send calls free(): the frame that contained the message then no longer counts towards the limits
	// on bodies. The caller calls free() again after Send, so a second call must do nothing.
	Send(ctx context.Context, action json.RawMessage, free func()) error
}

// Client is the remote end of a connection.
type Client struct {
	conn *websocket.Conn
	pong chan struct{}
	// writing is a lock: it holds a value while a message is written. If a ping is due while a large
	// event is written, the ping waits.
	writing chan struct{}
	// actions are the packets of the client that are not sent to the session yet.
	actions chan action
}

var (
	// errDone reports that the client ended the connection.
	errDone      = errors.New("the client is gone")
	errNamespace = errors.New("unknown Socket.IO namespace")
	errActions   = errors.New("too many messages already wait for the session; retry later")
	errGreeting  = errors.New("the client sent no connect packet")
)

// Greet opens a connection and reads the client's connect packet. It returns the data of the
// packet, with which the client may authenticate. Unless Greet returns an error, the caller must
// call Refuse or Serve.
func Greet(ctx context.Context, conn *websocket.Conn) (_ *Client, auth string, err error) {
	conn.SetReadLimit(maxGreeting)
	s := &Client{conn: conn, pong: make(chan struct{}, 1), writing: make(chan struct{}, 1),
		actions: make(chan action, maxActions)}
	if auth, err = s.greet(ctx); err != nil {
		s.close(ctx)
		return nil, "", err
	}
	return s, auth, nil
}

// Refuse sends the client an error and ends the connection.
func (s *Client) Refuse(ctx context.Context, refused error) {
	_ = s.write(ctx, packetRefused+message(refused))
	s.close(ctx)
}

// Serve serves the client until it disconnects, the session ends or ctx ends.
func (s *Client) Serve(ctx context.Context, c Conversation, after int) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := s.write(ctx, fmt.Sprintf(`%s{"sid":%q}`, packetConnect, rand.Text())); err == nil {
		s.conn.SetReadLimit(maxFrame)
		go func() { cancel(s.read(ctx, c)) }()
		go func() { cancel(s.ping(ctx)) }()
		go func() {
			cancel(s.perform(ctx, c))
			s.discard()
		}()
		_ = s.send(ctx, c, after) // the client reconnects after an error
	}
	s.close(ctx)
}

func (s *Client) close(ctx context.Context) {
	if errors.Is(context.Cause(ctx), errDone) {
		_ = s.conn.CloseNow()
		return
	}
	_ = s.conn.Close(websocket.StatusGoingAway, "")
}

// write sends a message. The client must read each piece of it within the timeout.
func (s *Client) write(ctx context.Context, text string) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(writeTimeout, cancel)
	defer timer.Stop()
	if len(text) <= deadline.Piece {
		return s.conn.Write(ctx, websocket.MessageText, []byte(text))
	}
	to, err := s.conn.Writer(ctx, websocket.MessageText)
	if err != nil {
		return err
	}
	for piece := range slices.Chunk([]byte(text), deadline.Piece) {
		timer.Reset(writeTimeout)
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return to.Close()
}

// greet opens the connection and waits for the client's connect packet to Socket.IO's default
// namespace.
func (s *Client) greet(ctx context.Context) (auth string, err error) {
	open, err := json.Marshal(map[string]any{
		"sid": rand.Text(), "upgrades": []string{}, "pingInterval": pingInterval.Milliseconds(),
		"pingTimeout": pongTimeout.Milliseconds(), "maxPayload": maxFrame,
	})
	if err == nil {
		err = s.write(ctx, frameOpen+string(open))
	}
	if err != nil {
		return "", err
	}
	waiting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for range maxGreetings {
		_, frame, err := s.conn.Read(waiting)
		if err != nil {
			return "", err
		}
		auth, wanted := strings.CutPrefix(string(frame), packetConnect)
		switch {
		case wanted && strings.HasPrefix(auth, "/"): // a namespace
			name, _, _ := strings.Cut(auth, ",")
			return "", errors.Join(s.write(ctx, packetRefused+name+","+message(errNamespace)), errNamespace)
		case wanted:
			return auth, nil
		}
	}
	return "", errGreeting
}

func message(err error) string {
	text, _ := json.Marshal(map[string]string{"message": err.Error()})
	return string(text)
}

// send sends past events, then new events. Of the past changes of the agent's state, it sends only
// the last change, because earlier states are stale. The last change comes after the other past
// events.
func (s *Client) send(ctx context.Context, c Conversation, after int) error {
	var state *live.Event
	err := c.Backlog(ctx, after, func(e live.Event) error {
		after = max(after, e.ID)
		if isState(e.Data) {
			state = &e
			return nil
		}
		return s.event(ctx, e.Data)
	})
	if err == nil && state != nil {
		err = s.event(ctx, state.Data)
	}
	if err != nil {
		return err
	}
	return c.Follow(ctx, after, func(e live.Event) error { return s.event(ctx, e.Data) })
}

func isState(data json.RawMessage) bool {
	var e struct{ Observation string }
	return json.Unmarshal(data, &e) == nil && e.Observation == session.ObservedState
}

func (s *Client) event(ctx context.Context, data json.RawMessage) error {
	return s.write(ctx, packetEvent+`["`+eventOut+`",`+string(data)+`]`)
}

func (s *Client) ping(ctx context.Context) error {
	for {
		select {
		case <-time.After(pingInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.write(ctx, framePing); err != nil {
			return errDone
		}
		select {
		case <-s.pong:
		case <-time.After(pongTimeout):
			return errDone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Client) read(ctx context.Context, c Conversation) error {
	for {
		frame, done, err := s.receive(ctx, c)
		if err == nil && frame == nil {
			continue // refused, and the client was notified
		}
		if err == nil {
			err = s.take(ctx, c, frame, done)
		}
		if err != nil {
			return errDone
		}
	}
}

// receive reads a frame. If the limits have no room for the frame, it discards the frame and
// returns nil. There is no timeout: a client that sends a frame too slowly cannot send its pong in
// time, and ping() disconnects it.
func (s *Client) receive(ctx context.Context, c Conversation) (frame []byte, done func(), err error) {
	_, from, err := s.conn.Reader(ctx)
	if err != nil {
		return nil, nil, err
	}
	small := make([]byte, smallFrame)
	n, err := io.ReadFull(from, small)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return small[:n], func() {}, nil
	case err != nil:
		return nil, nil, err
	}
	frame, done, refused := c.Receive(ctx, io.MultiReader(bytes.NewReader(small), from))
	if refused == nil {
		return frame, done, nil
	}
	if _, err = io.Copy(io.Discard, from); err == nil {
		err = c.Count()
	}
	if err == nil {
		err = s.sendError(ctx, refused)
	}
	return nil, nil, err
}

// take handles a frame. All frames except expected pongs count towards the client's rate limit.
// Above the limit, an event is answered with an error, and any other frame ends the connection.
func (s *Client) take(ctx context.Context, c Conversation, frame []byte, done func()) error {
	passed := false
	defer func() {
		if !passed {
			done()
		}
	}()
	if string(frame) == framePong {
		select {
		case s.pong <- struct{}{}:
			return nil
		default:
		}
	}
	tooFast := c.Count()
	packet, isEvent := bytes.CutPrefix(frame, []byte(packetEvent))
	switch {
	case isEvent && tooFast != nil:
		return s.sendError(ctx, tooFast)
	case isEvent:
		select {
		case s.actions <- action{packet, done}:
			passed = true
			if ctx.Err() != nil {
				s.discard() // perform may have ended
			}
			return nil
		default:
			return s.sendError(ctx, errActions)
		}
	case tooFast != nil:
		return tooFast
	case string(frame) == framePing: // a client may ping too
		return s.write(ctx, framePong)
	case string(frame) == frameClose, bytes.HasPrefix(frame, []byte(packetDisconnect)):
		return errDone
	}
	return nil
}
