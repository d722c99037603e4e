// Package socket speaks Socket.IO with clients of the existing service, over websockets only: the few frames of Engine.IO 4 and
// Socket.IO 5 that they send and understand.
package socket

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/api/session"
)

const (
	// pingInterval is how often a client is asked for a sign of life, pongTimeout how long it may take.
	pingInterval = 25 * time.Second
	pongTimeout  = 20 * time.Second
	// writeTimeout is how long a client may take for each frame. Nothing waits for it but that frame: who is too slow is dropped,
	// and comes back with its last id.
	writeTimeout = 30 * time.Second
	// greetTimeout is how long a client may take to say that it wants to connect.
	greetTimeout = 10 * time.Second
	// MaxFrame bounds what a client sends at once.
	MaxFrame = 4 << 20
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

// The events: what the session says, and what the user does. The second name of the latter is that of old clients.
const (
	eventOut   = "oh_event"
	eventIn    = "oh_user_action"
	eventInOld = "oh_action"
)

// Event of a session.
type Event struct {
	ID   int
	Data json.RawMessage
}

// Conversation is what a client watches and answers.
type Conversation interface {
	// Backlog visits the events after one that there are.
	Backlog(ctx context.Context, after int, visit func(Event) error) error
	// Follow visits those after one that there are and that come, until the session ends.
	Follow(ctx context.Context, after int, visit func(Event) error) error
	// Send what the user does. Its error is one for the user to read.
	Send(ctx context.Context, action json.RawMessage) error
}

// client is at the other end of a connection.
type client struct {
	conn *websocket.Conn
	pong chan struct{}
}

// errDone ends a connection that the client has ended.
var errDone = errors.New("the client is gone")

// Serve a client until it goes, the session ends or ctx does. refused says why it cannot be served; nil if it can.
func Serve(ctx context.Context, conn *websocket.Conn, c Conversation, after int, refused error) {
	conn.SetReadLimit(MaxFrame)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &client{conn: conn, pong: make(chan struct{}, 1)}
	err := s.greet(ctx, refused)
	if err == nil {
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
func (s *client) greet(ctx context.Context, refused error) error {
	open, err := json.Marshal(map[string]any{
		"sid": rand.Text(), "upgrades": []string{}, "pingInterval": pingInterval.Milliseconds(), "pingTimeout": pongTimeout.Milliseconds(), "maxPayload": MaxFrame,
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

// send what happened, and then what happens. Of the states that the agent was in only the last is told, at the end: those before
// it are over.
func (s *client) send(ctx context.Context, c Conversation, after int) error {
	var state *Event
	err := c.Backlog(ctx, after, func(e Event) error {
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
	return c.Follow(ctx, after, func(e Event) error { return s.event(ctx, e.Data) })
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
		_, frame, err := s.conn.Read(ctx)
		if err != nil {
			return errDone
		}
		text := string(frame)
		switch {
		case text == framePong:
			select {
			case s.pong <- struct{}{}:
			default:
			}
		case text == framePing: // a client that asks us
			err = s.write(ctx, framePong)
		case text == frameClose, strings.HasPrefix(text, packetDisconnect):
			return errDone
		case strings.HasPrefix(text, packetEvent):
			err = s.act(ctx, c, strings.TrimPrefix(text, packetEvent))
		}
		if err != nil {
			return errDone
		}
	}
}

// act on an event of the client. What is wrong with it the user is told, as the client shows it.
func (s *client) act(ctx context.Context, c Conversation, packet string) error {
	ack, name, data, err := parse(packet)
	if err == nil && name != eventIn && name != eventInOld {
		err = fmt.Errorf("the event is not %s", eventIn)
	}
	if err == nil {
		err = c.Send(ctx, data)
	}
	if err != nil {
		told, _ := json.Marshal(map[string]any{"status_update": true, "type": "error", "id": "STATUS$ERROR", "message": err.Error()})
		return s.event(ctx, told)
	}
	if ack != "" {
		return s.write(ctx, packetAck+ack+"[]")
	}
	return nil
}

var errPacket = errors.New("the event cannot be read")

// parse an event: the number that it is to be acknowledged with, if any, its name and what it holds.
func parse(packet string) (ack, name string, data json.RawMessage, err error) {
	start := strings.IndexByte(packet, '[')
	if start < 0 || start > 20 {
		return "", "", nil, errPacket
	}
	ack = packet[:start]
	if strings.Trim(ack, "0123456789") != "" {
		return "", "", nil, errPacket
	}
	var parts []json.RawMessage
	if json.Unmarshal([]byte(packet[start:]), &parts) != nil || len(parts) != 2 || json.Unmarshal(parts[0], &name) != nil {
		return "", "", nil, errPacket
	}
	return ack, name, parts[1], nil
}
