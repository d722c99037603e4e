package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// action is a client's packet with an action. done() must be called when the packet is
// no longer used.
type action struct {
	packet []byte
	done   func()
}

// perform sends the client's actions to the session in their order. The goroutine that reads frames
// must not wait for these actions, because it also reads the pongs.
func (s *Client) perform(ctx context.Context, c Conversation) error {
	for {
		select {
		case next := <-s.actions:
			err := s.act(ctx, c, next)
			next.done()
			if err != nil {
				return errDone
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// discard drops the actions of a client that is gone. It is called after the context has ended.
func (s *Client) discard() {
	for {
		select {
		case dropped := <-s.actions:
			dropped.done()
		default:
			return
		}
	}
}

// act sends an event of the client to the session. If that fails, it sends the error to the client.
func (s *Client) act(ctx context.Context, c Conversation, a action) error {
	ack, name, data, err := parse(a.packet)
	if err == nil && name != eventIn && name != eventInOld {
		err = fmt.Errorf("the event must be %s", eventIn)
	}
	if err == nil {
		err = c.Send(ctx, data, a.done)
	}
	switch {
	case err != nil:
		return s.sendError(ctx, err)
	case ack != "":
		return s.write(ctx, packetAck+ack+"[]")
	}
	return nil
}

func (s *Client) sendError(ctx context.Context, wrong error) error {
	update, err := json.Marshal(map[string]any{"status_update": true, "type": "error", "id": "STATUS$ERROR",
		"message": wrong.Error()})
	if err != nil {
		return err
	}
	return s.event(ctx, update)
}

var errPacket = errors.New("the event is malformed")

// parse returns an event's acknowledgement number, if any, its name and its data.
func parse(packet []byte) (ack, name string, data json.RawMessage, err error) {
	start := bytes.IndexByte(packet, '[')
	if start < 0 || start > 20 {
		return "", "", nil, errPacket
	}
	ack = string(packet[:start])
	if strings.Trim(ack, "0123456789") != "" {
		return "", "", nil, errPacket
	}
	var parts [3]json.RawMessage // a third part is an error; no more are decoded
	if json.Unmarshal(packet[start:], &parts) != nil || parts[1] == nil || parts[2] != nil || json.Unmarshal(parts[0],
		&name) != nil {
		return "", "", nil, errPacket
	}
	return ack, name, parts[1], nil
}
