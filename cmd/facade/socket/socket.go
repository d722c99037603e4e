// Package socket speaks Socket.IO with clients of the existing service, over websockets only: the
// few frames of Engine.IO 4 and Socket.IO 5 that they send and understand.
package socket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/live"
)

const (
	// pingInterval is how often a client is asked for a sign of life, pongTimeout how long it may
	// take.
	pingInterval = 25 * time.Second
	pongTimeout  = 20 * time.Second
	// writeTimeout is how long a client may take for each frame. Nothing waits for it but that
	// frame: who is too slow is dropped, and comes back with its last id.
	writeTimeout = 30 * time.Second
	// greetTimeout is how long a client may take to say that it wants to connect.
	greetTimeout = 10 * time.Second
	// maxFrame bounds what a client sends at once, and maxGreeting what it sends before it is let
	// in.
	maxFrame    = 4 << 20
	maxGreeting = 16 << 10
	// smallFrame is what is read without being counted: signs of life, and most of what users do.
	smallFrame = 1 << 10
)

// Frames of Engine.IO, and packets of Socket.IO in its messages.
const (
	frameOpen, framePing, framePong = "0", "2", "3"
	frameClose                      = "1"
	packetConnect                   = "40"
	packetDisconnect                = "41"
	packetEvent                     = "42"
	packetAck                       = "43"
	packetRefused                   = "44"
)

// The events: what the session says, and what the user does. The second name of the latter is that
// of old clients.
const (
	eventOut   = "oh_event"
	eventIn    = "oh_user_action"
	eventInOld = "oh_action"
)

// Conversation is what a client watches and answers.
type Conversation interface {
	// Backlog visits the events after one that there are.
	Backlog(ctx context.Context, after int, visit func(live.Event) error) error
	// Follow visits those after one that there are and that come, until the session ends.
	Follow(ctx context.Context, after int, visit func(live.Event) error) error
	// Count something that the user sent, or say why it is too much.
	Count() error
	// Receive something large that the user sends, if there is room for it. Done must be called
	// when it is done with, unless there is an error.
	Receive(ctx context.Context, from io.Reader) (frame []byte, done func(), err error)
	// Send what the user does. As all errors here, its error is one for the user to read.
	Send(ctx context.Context, action json.RawMessage) error
}

// client is at the other end of a connection.
type client struct {
	conn *websocket.Conn
	pong chan struct{}
}

// errDone ends a connection that the client has ended.
var errDone = errors.New("the client is gone")

// Serve a client until it goes, the session ends or ctx does. refused says why it cannot be served;
// nil if it can.
func Serve(ctx context.Context, conn *websocket.Conn, c Conversation, after int, refused error) {
	conn.SetReadLimit(maxGreeting)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &client{conn: conn, pong: make(chan struct{}, 1)}
	err := s.greet(ctx, c, refused)
	if err == nil {
		conn.SetReadLimit(maxFrame)
		go func() { cancel(s.read(ctx, c)) }()
		go func() { cancel(s.ping(ctx)) }()
		err = s.send(ctx, c, after)
	}
	switch {
	case errors.Is(context.Cause(ctx), errDone):
		_ = conn.CloseNow()
	case ctx.Err() != nil || err != nil:
		_ = conn.Close(websocket.StatusGoingAway, "")
	default:
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

func (s *client) write(ctx context.Context, frame string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, []byte(frame))
}

// greet opens the connection, and lets the client into the one namespace there is.
func (s *client) greet(ctx context.Context, c Conversation, refused error) error {
	open, err := json.Marshal(map[string]any{
		"sid": rand.Text(), "upgrades": []string{}, "pingInterval": pingInterval.Milliseconds(),
		"pingTimeout": pongTimeout.Milliseconds(), "maxPayload": maxFrame,
	})
	if err == nil {
		err = s.write(ctx, frameOpen+string(open))
	}
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	for {
		_, frame, err := s.conn.Read(waiting)
		if err == nil {
			err = c.Count()
		}
		if err != nil {
			return err
		}
		rest, wanted := strings.CutPrefix(string(frame), packetConnect)
		switch {
		case !wanted:
			continue
		case strings.HasPrefix(rest, "/"): // a namespace
			name, _, _ := strings.Cut(rest, ",")
			refused = errors.New("there is no such namespace")
			return errors.Join(s.write(ctx, packetRefused+name+","+message(refused)), refused)
		case refused != nil:
			return errors.Join(s.write(ctx, packetRefused+message(refused)), refused)
		}
		return s.write(ctx, fmt.Sprintf(`%s{"sid":%q}`, packetConnect, rand.Text()))
	}
}

func message(err error) string {
	text, _ := json.Marshal(map[string]string{"message": err.Error()})
	return string(text)
}

// send what happened, and then what happens. Of the states that the agent was in only the last is
// told, at the end: those before it are over.
func (s *client) send(ctx context.Context, c Conversation, after int) error {
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

func (s *client) event(ctx context.Context, data json.RawMessage) error {
	return s.write(ctx, packetEvent+`["`+eventOut+`",`+string(data)+`]`)
}

// ping as long as the client answers.
func (s *client) ping(ctx context.Context) error {
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

// read what the client sends.
func (s *client) read(ctx context.Context, c Conversation) error {
	for {
		frame, done, err := s.receive(ctx, c)
		if err == nil && frame == nil {
			continue // there was no room for it, and the user was told
		}
		if err == nil {
			err = s.take(ctx, c, frame)
			done()
		}
		if err != nil {
			return errDone
		}
	}
}

// receive a frame. What there is no room for is not kept. Who takes too long for one is dropped by
// ping: no sign of life can come before its end.
func (s *client) receive(ctx context.Context, c Conversation) (frame []byte, done func(), err error) {
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
		err = s.tell(ctx, refused)
	}
	return nil, nil, err
}

// take a frame. Each is counted, but for the sign of life that was asked for; who sends too many
// events is told, and who sends too much else is not listened to any longer.
func (s *client) take(ctx context.Context, c Conversation, frame []byte) error {
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
		return s.tell(ctx, tooFast)
	case isEvent:
		return s.act(ctx, c, packet)
	case tooFast != nil:
		return tooFast
	case string(frame) == framePing: // a client that asks us
		return s.write(ctx, framePong)
	case string(frame) == frameClose, bytes.HasPrefix(frame, []byte(packetDisconnect)):
		return errDone
	}
	return nil
}

// act on an event of the client. What is wrong with it the user is told, as the client shows it.
func (s *client) act(ctx context.Context, c Conversation, packet []byte) error {
	ack, name, data, err := parse(packet)
	if err == nil && name != eventIn && name != eventInOld {
		err = fmt.Errorf("the event is not %s", eventIn)
	}
	if err == nil {
		err = c.Send(ctx, data)
	}
	switch {
	case err != nil:
		return s.tell(ctx, err)
	case ack != "":
		return s.write(ctx, packetAck+ack+"[]")
	}
	return nil
}

// tell the user what is wrong.
func (s *client) tell(ctx context.Context, wrong error) error {
	told, err := json.Marshal(map[string]any{"status_update": true, "type": "error", "id": "STATUS$ERROR",
		"message": wrong.Error()})
	if err != nil {
		return err
	}
	return s.event(ctx, told)
}

var errPacket = errors.New("the event cannot be read")

// parse an event: the number that it is to be acknowledged with, if any, its name and what it
// holds.
func parse(packet []byte) (ack, name string, data json.RawMessage, err error) {
	start := bytes.IndexByte(packet, '[')
	if start < 0 || start > 20 {
		return "", "", nil, errPacket
	}
	ack = string(packet[:start])
	if strings.Trim(ack, "0123456789") != "" {
		return "", "", nil, errPacket
	}
	var parts [3]json.RawMessage // a third is one too many, and no more of them are kept
	if json.Unmarshal(packet[start:], &parts) != nil || parts[1] == nil || parts[2] != nil || json.Unmarshal(parts[0],
		&name) != nil {
		return "", "", nil, errPacket
	}
	return ack, name, parts[1], nil
}
