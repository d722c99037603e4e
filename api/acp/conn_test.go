package acp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/acp"
)

type recorder struct {
	mu         sync.Mutex
	updates    []string
	noise      []string
	permission func(ctx context.Context) (any, error)
}

func (h *recorder) Notification(method string, params json.RawMessage) {
	if method != acp.MethodUpdate {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updates = append(h.updates, string(params))
}

func (h *recorder) Noise(line string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noise = append(h.noise, line)
}

func (h *recorder) Request(ctx context.Context, method string, _ json.RawMessage) func() (any, error) {
	if method != acp.MethodRequestPermission {
		return acp.NoMethod(method)
	}
	return func() (any, error) { return h.permission(ctx) }
}

// agent is the other side of the connection.
type agent struct {
	t    *testing.T
	read *bufio.Reader
	out  io.WriteCloser
}

func connect(t *testing.T, handler acp.Handler) (*acp.Conn, *agent) {
	t.Helper()
	toAgent, fromClient := io.Pipe()
	toClient, fromAgent := io.Pipe()
	t.Cleanup(func() { _ = fromAgent.Close(); _ = toAgent.Close() })
	conn := acp.NewConn(toClient, fromClient)
	go func() { _ = conn.Serve(t.Context(), handler) }()
	return conn, &agent{t: t, read: bufio.NewReader(toAgent), out: fromAgent}
}

func (a *agent) hears(want string) {
	a.t.Helper()
	line, err := a.read.ReadString('\n')
	if err != nil || !strings.Contains(line, want) {
		a.t.Errorf("the agent heard %q, %v; want %q", line, err, want)
	}
}

func (a *agent) says(lines ...string) {
	a.t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(a.out, line+"\n"); err != nil {
			a.t.Error(err)
		}
	}
}

func TestSessionUpdatesAreHandledBeforeALaterResponse(t *testing.T) {
	h := &recorder{}
	conn, agent := connect(t, h)
	go func() {
		agent.hears(`"method":"session/prompt"`)
		for n := range 50 {
			agent.says(fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":%d}`, n))
		}
		agent.says("a line of a log", "", `{"jsonrpc":"2.0","method":"other/notification"}`,
			`{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}`)
	}()
	var answer acp.PromptResult
	if err := conn.Call(t.Context(), acp.MethodPrompt, acp.PromptParams{}, &answer); err != nil ||
		answer.StopReason != acp.EndTurn {
		t.Fatalf("got %+v, %v", answer, err)
	}
	if len(h.updates) != 50 || h.updates[49] != "49" || len(h.noise) != 1 {
		t.Errorf("heard %v and %v", h.updates, h.noise)
	}
}

func TestAnErrorContainsTheAgentsMessageAndDetails(t *testing.T) {
	conn, agent := connect(t, &recorder{})
	go func() {
		agent.hears("initialize")
		agent.says(`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no such model",` +
			`"data":{"kind":"model_not_found","details":"gpt-0"}}}`)
		agent.hears("initialize")
		agent.says(`{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"no","data":["of","another","form"]}}`)
	}()
	var failed *acp.Error
	if err := conn.Call(t.Context(), acp.MethodInitialize, nil, nil); !errors.As(err, &failed) ||
		failed.Data.Kind != "model_not_found" || err.Error() != "no such model: gpt-0" {
		t.Errorf("got %v", err)
	}
	if err := conn.Call(t.Context(), acp.MethodInitialize, nil, nil); !errors.As(err, &failed) || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
}

func TestTheAgentsMessagesAreReadDuringAPermissionRequest(t *testing.T) {
	decided := make(chan struct{})
	h := &recorder{permission: func(context.Context) (any, error) {
		<-decided
		return acp.Choose([]acp.PermissionOption{{OptionID: "no", Kind: acp.RejectOnce}, {OptionID: "yes",
			Kind: acp.AllowOnce}}, acp.AllowOnce, ""), nil
	}}
	conn, agent := connect(t, h)
	agent.says(`{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{}}`)
	go func() {
		agent.hears("session/new")
		agent.says(`{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}`)
	}()
	if err := conn.Call(t.Context(), acp.MethodNewSession, acp.SessionParams{}, nil); err != nil {
		t.Error(err)
	}
	close(decided)
	agent.hears(`{"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}`)
}

func TestAnUnknownMethodIsAnError(t *testing.T) {
	_, agent := connect(t, &recorder{})
	agent.says(`{"jsonrpc":"2.0","id":7,"method":"fs/read_text_file","params":{}}`)
	agent.hears(`"code":-32601`)
}

func TestCallsEndWhenTheAgentExits(t *testing.T) {
	conn, agent := connect(t, &recorder{})
	go func() {
		agent.hears("session/prompt")
		_ = agent.out.Close()
	}()
	if err := conn.Call(t.Context(), acp.MethodPrompt, nil, nil); !errors.Is(err, acp.ErrClosed) {
		t.Errorf("got %v", err)
	}
	<-conn.Done()
	if err := conn.Call(t.Context(), acp.MethodPrompt, nil, nil); !errors.Is(err, acp.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestAnEndlessLineEndsTheConnection(t *testing.T) {
	conn, agent := connect(t, &recorder{})
	go func() {
		block := strings.Repeat("x", 1<<20)
		for range 80 {
			if _, err := io.WriteString(agent.out, block); err != nil {
				return
			}
		}
	}()
	<-conn.Done()
	if err := conn.Call(t.Context(), acp.MethodPrompt, nil, nil); err == nil || !strings.Contains(err.Error(),
		"more than") {
		t.Errorf("got %v", err)
	}
}

func TestTooManyRequestsEndTheConnection(t *testing.T) {
	conn, agent := connect(t, &recorder{permission: func(ctx context.Context) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	go func() {
		for n := range 1000 {
			if _, err := fmt.Fprintf(agent.out, `{"jsonrpc":"2.0","id":%d,"method":"session/request_permission","params":{}}`+
				"\n", n); err != nil {
				return
			}
		}
	}()
	select {
	case <-conn.Done():
	case <-time.After(20 * time.Second):
		t.Error("1000 requests are in flight")
	}
}

func TestAMessageThatIsTooLongDoesNotEndTheConnection(t *testing.T) {
	long := strings.Repeat("x", 64<<20)
	conn, agent := connect(t, &recorder{permission: func(context.Context) (any, error) { return long, nil }})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		_, _ = agent.read.ReadString('\n')
		agent.says(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	}()
	var refused *acp.Error
	if err := conn.Call(ctx, acp.MethodPrompt, long, nil); !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "more than 64 MiB") {
		t.Fatalf("the long request: %v", err)
	}
	if err := conn.Call(ctx, acp.MethodNewSession, nil, nil); err != nil {
		t.Fatalf("the next request: %v", err)
	}
	agent.says(`{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{}}`)
	agent.hears(`"id":"p","error":{`)
}
