package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/acp"
)

type listener struct{ requests, notifications, noise, answered atomic.Int64 }

func (l *listener) Request(_ context.Context, method string, _ json.RawMessage) func() (any, error) {
	l.requests.Add(1)
	return func() (any, error) {
		defer l.answered.Add(1)
		return acp.NoMethod(method)()
	}
}

func (l *listener) Notification(string, json.RawMessage) { l.notifications.Add(1) }

func (l *listener) Noise(string) { l.noise.Add(1) }

// For any input, each call gets a response or an error, Serve returns, and the handler gets at most
// one call per line.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		"", "\n\n", "hello\n", "{}\n", "null\n", "[1,2]\n", `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n",
		`{"id":"1","result":{}}` + "\n", `{"id":1,"error":{"code":"x"}}` + "\n",
		`{"id":1,"error":{"code":-1,"message":"m","data":5}}` + "\n",
		`{"id":2,"result":{}}` + "\n" + `{"id":1}` + "\n" + `{"id":1}` + "\n", `{"method":"session/update"}` + "\n",
		`{"id":null,"method":"x","params":[]}` + "\n", `{"id":{"a":1},"method":"x"}` + "\n" + `{"id":1,"result":"\ud800"}`,
		"\xff\xfe\n",
		`{"jsonrpc":"2.0","method":"session/update","params":{}}`, `{"id":1}` + "\n" +
			`{"jsonrpc":"2.0","id":{},"method":"x"}`, "\x00\n[]\nnull\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		reader, writer := io.Pipe()
		conn := acp.NewConn(reader, io.Discard)
		l := &listener{}
		ended := make(chan error, 2)
		go func() { ended <- conn.Serve(t.Context(), l) }()
		// Two calls are in flight while the input is read. The input may contain their responses.
		calls := make(chan error, 2)
		for range 2 {
			go func() { calls <- conn.Call(t.Context(), "initialize", nil, new(any)) }()
		}
		_, _ = writer.Write(said)
		_ = writer.Close()
		wait := time.After(10 * time.Second)
		for range 2 {
			select {
			case <-calls:
			case <-wait:
				t.Fatalf("after %q a call has no answer", said)
			}
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%q ends in %v", said, err)
			}
		case <-wait:
			t.Fatalf("%q is read without end", said)
		}
		if err := conn.Call(t.Context(), "late", nil, nil); !errors.Is(err, acp.ErrClosed) {
			t.Errorf("a call after the end: %v", err)
		}
		lines := int64(0)
		for _, line := range bytes.SplitAfter(said, []byte("\n")) {
			if bytes.HasSuffix(line, []byte("\n")) && len(bytes.TrimSpace(line)) > 0 {
				lines++
			}
		}
		if calls := l.requests.Load() + l.notifications.Load() + l.noise.Load(); calls > lines {
			t.Errorf("%d lines gave %d calls: %q", lines, calls, said)
		}
	})
}
