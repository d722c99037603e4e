package socket

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// waiting is a conversation whose method Send blocks until the client is gone. held is the number
// of received frames that the facade has not released.
type waiting struct {
	quiet
	held *atomic.Int64
}

func (w waiting) Receive(ctx context.Context, from io.Reader) ([]byte, func(), error) {
	frame, _, err := w.quiet.Receive(ctx, from)
	w.held.Add(1)
	return frame, func() { w.held.Add(-1) }, err
}

func (w waiting) Send(ctx context.Context, _ json.RawMessage, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// A message may wait for half a minute. Meanwhile, the facade must read the client's pongs.
func TestAWaitingMessageBlocksNoOtherFrames(t *testing.T) {
	w := waiting{held: &atomic.Int64{}}
	conn := dial(t, w)
	for range 2 {
		if frame, err := next(t, conn); err != nil {
			t.Fatalf("%s: %v", frame, err)
		} else if strings.HasPrefix(frame, frameOpen) {
			send(t, conn, packetConnect)
		}
	}
	large := fmt.Sprintf(`42["oh_user_action",{"x":%q}]`, strings.Repeat("x", smallFrame))
	for range maxActions + 2 { // one is being sent, maxActions wait, and one is refused
		send(t, conn, large)
	}
	send(t, conn, framePing)
	refused := false
	for {
		frame, err := next(t, conn)
		if err != nil {
			t.Fatal(err)
		}
		if frame == framePong {
			break
		}
		refused = refused || strings.Contains(frame, errActions.Error())
	}
	if !refused {
		t.Error("all messages wait")
	}
	_ = conn.CloseNow()
	for deadline := time.Now().Add(10 * time.Second); w.held.Load() != 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d frames are not released", w.held.Load())
		}
		<-time.After(time.Millisecond)
	}
}
