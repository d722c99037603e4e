package socket

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/cmd/facade/live"
)

// bounded is a conversation whose user may send a limited number of small frames, and no large
// frames.
type bounded struct {
	quiet
	left *atomic.Int64
}

func (b bounded) Count() error {
	if b.left.Add(-1) < 0 {
		return errors.New("too many requests")
	}
	return nil
}

func (b bounded) Receive(_ context.Context, from io.Reader) ([]byte, func(), error) {
	_, _ = io.CopyN(io.Discard, from, 2*smallFrame) // up to the limit
	return nil, nil, errors.New("the frame is too large")
}

// greeted connects a user and limits the number of frames that the user may send after the
// greeting.
func greeted(t *testing.T, frames int64) *websocket.Conn {
	t.Helper()
	b := bounded{left: &atomic.Int64{}}
	b.left.Store(frames)
	conn := dial(t, b)
	if _, err := next(t, conn); err != nil {
		t.Fatal(err)
	}
	send(t, conn, packetConnect)
	if frame, err := next(t, conn); !strings.HasPrefix(frame, packetConnect) {
		t.Fatalf("greeted with %s, %v", frame, err)
	}
	return conn
}

func send(t *testing.T, conn *websocket.Conn, frame string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
		t.Fatal(err)
	}
}

func TestARefusedFrameDoesNotEndTheConnection(t *testing.T) {
	conn := greeted(t, 10)
	send(t, conn, `42["oh_user_action",{"x":"`+strings.Repeat("x", maxFrame-100)+`"}]`)
	if frame, err := next(t, conn); !strings.Contains(frame, "the frame is too large") {
		t.Errorf("answered %s, %v", frame, err)
	}
	send(t, conn, framePing)
	if frame, err := next(t, conn); frame != framePong {
		t.Errorf("answered %s, %v", frame, err)
	}
}

func TestTooManySocketEventsAreRefused(t *testing.T) {
	conn := greeted(t, 1)
	send(t, conn, `421["oh_user_action",{}]`)
	if frame, err := next(t, conn); frame != "431[]" {
		t.Errorf("answered %s, %v", frame, err)
	}
	send(t, conn, `422["oh_user_action",{}]`)
	if frame, err := next(t, conn); !strings.Contains(frame, "too many requests") {
		t.Errorf("answered %s, %v", frame, err)
	}
}

func TestFramesOfEveryKindCountTowardsTheRateLimit(t *testing.T) {
	for name, frame := range map[string]string{
		"of an unknown type": "5", "with a ping": framePing, "with an unexpected pong": framePong,
		"that is large": strings.Repeat("x", maxFrame),
	} {
		t.Run(name, func(t *testing.T) {
			conn := greeted(t, 2)
			for range 6 {
				_ = conn.Write(t.Context(), websocket.MessageText, []byte(frame)) // the connection may have ended
			}
			answered := 0
			for ; answered < 5; answered++ {
				if _, err := next(t, conn); err != nil {
					break
				}
			}
			if answered > 2 {
				t.Error("the connection stays open")
			}
		})
	}
}

func TestATooLongConnectPacketIsRefused(t *testing.T) {
	conn := dial(t, quiet{})
	if _, err := next(t, conn); err != nil {
		t.Fatal(err)
	}
	send(t, conn, packetConnect+strings.Repeat("x", 2*maxGreeting))
	if frame, err := next(t, conn); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("answered %s, %v", frame, err)
	}
}

// conns is a listener for in-memory connections. Their timeouts use the fake time of a synctest
// bubble.
type conns chan net.Conn

func (c conns) Accept() (net.Conn, error) {
	if conn, open := <-c; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (c conns) Close() error   { return nil }
func (c conns) Addr() net.Addr { return &net.TCPAddr{} }

// inBubble connects a client to a conversation over an in-memory connection without buffers.
func inBubble(t *testing.T, c Conversation, do func(t *testing.T, conn *websocket.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener, served := make(conns), make(chan struct{})
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			serve(w, r, c)
			close(served)
		})}
		go func() { _ = server.Serve(listener) }()
		dial := func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			listener <- there
			return here, nil
		}
		options := &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}}}
		conn, _, err := websocket.Dial(t.Context(), "ws://facade/", options) //nolint:bodyclose // the connection
		if err != nil {
			t.Fatal(err)
		}
		do(t, conn)
		_ = conn.CloseNow()
		<-served
		close(listener)
		_ = server.Close()
	})
}

func TestAnEndlessFrameEndsTheConnection(t *testing.T) {
	inBubble(t, quiet{}, func(t *testing.T, conn *websocket.Conn) {
		go func() { // reads everything
			for {
				if _, _, err := conn.Read(t.Context()); err != nil {
					return
				}
			}
		}()
		send(t, conn, packetConnect)
		endless, err := conn.Writer(t.Context(), websocket.MessageText)
		for sent := time.Now(); err == nil && time.Since(sent) < 5*time.Minute; <-time.After(time.Second) {
			_, err = endless.Write(make([]byte, 8<<10))
		}
		if err == nil {
			t.Error("the frame is read forever")
		}
	})
}

func TestAClientWithoutAConnectPacketIsDropped(t *testing.T) {
	for name, frames := range map[string]int{"it is silent": 0, "it sends other frames": maxGreetings} {
		inBubble(t, quiet{}, func(t *testing.T, conn *websocket.Conn) {
			begun := time.Now()
			_, _, err := conn.Read(t.Context()) // the greeting
			for range frames {
				err = errors.Join(err, conn.Write(t.Context(), websocket.MessageText, []byte(framePong)))
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := conn.Read(t.Context()); err == nil || time.Since(begun) > connectTimeout+time.Second {
				t.Errorf("%s: after %s the client gets %v", name, time.Since(begun), err)
			}
		})
	}
}

type large struct{ quiet }

const largeSize = 4 << 20

func (l large) Backlog(_ context.Context, _ int, visit func(live.Event) error) error {
	return visit(live.Event{Data: json.RawMessage(`"` + strings.Repeat("x", largeSize) + `"`)})
}

// If the server disconnected a slow client during a large event, the client would reconnect with
// its last ID, and fail at the same event again.
func TestASlowClientReceivesALargeEvent(t *testing.T) {
	inBubble(t, large{}, func(t *testing.T, conn *websocket.Conn) {
		conn.SetReadLimit(-1)
		if _, _, err := conn.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		send(t, conn, packetConnect)
		if _, _, err := conn.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, from, err := conn.Reader(t.Context())
		size, buffer := 0, make([]byte, 8<<10)
		for begun := time.Now(); err == nil; {
			var n int
			n, err = from.Read(buffer)
			size += n
			<-time.After(time.Second) // fake time of the bubble
			if errors.Is(err, io.EOF) && time.Since(begun) < 2*writeTimeout {
				t.Errorf("the client is not slow: it took %s", time.Since(begun))
			}
		}
		if !errors.Is(err, io.EOF) || size < largeSize {
			t.Fatalf("the client received %d bytes, %v", size, err)
		}
		if _, frame, err := conn.Read(t.Context()); string(frame) != framePing {
			t.Errorf("after the event the client receives %s, %v", frame, err)
		}
	})
}

func TestAStalledClientIsDropped(t *testing.T) {
	inBubble(t, large{}, func(t *testing.T, conn *websocket.Conn) {
		conn.SetReadLimit(-1)
		_, _, err := conn.Read(t.Context())
		send(t, conn, packetConnect)
		<-time.After(2 * writeTimeout) // fake time of the bubble
		for i := 0; err == nil; i++ {
			if _, _, err = conn.Read(t.Context()); err == nil && i > 0 {
				t.Error("the client receives the event")
			}
		}
	})
}
