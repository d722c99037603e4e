package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func TestCancelStopsACommand(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t,
			calls(bash("sleep 1000 & echo $! > background")),
			calls(bash("echo $$ > pid; echo begun; sleep 1000; echo went on > more"), bash("echo never > never")),
			calls(bash("echo after")), says("Done."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		wait := c.promptWith(nil, *acp.Text("work"))
		eventually(t, "the command runs", func() bool { return s.file(t, "pid") != "" })
		c.send(map[string]any{"jsonrpc": "2.0", "method": acp.MethodCancel, "params": acp.CancelParams{SessionID: c.session}})
		if reason, err := wait(); err != nil || reason != acp.Cancelled {
			t.Fatalf("the turn ended with %q, %v", reason, err)
		}
		if len(c.find(`"call_1_0"`, `"interrupted":true`, `"failed"`, "begun")) != 1 ||
			len(c.find(`"call_1_1"`, `"failed"`)) != 1 || s.file(t, "never")+s.file(t, "more") != "" {
			t.Errorf("updates: %s", c.received())
		}
		c.mustPrompt("go on")
		if got := s.model.Requests()[2]; !strings.Contains(got.Result("call_1_0").Text, "interrupted") {
			t.Errorf("the model receives %q", got.Said())
		}
		if !alive(t, s.file(t, "background")) {
			t.Error("a background process was killed with the command")
		}
	})
}

func alive(t *testing.T, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestCancelStopsAnAnswer(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		hold := make(chan struct{})
		defer close(hold)
		s := newFixture(t, scriptedmodel.Step{Text: "never", Hold: hold}, says("Done."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		received := s.model.Received()
		wait := c.promptWith(nil, *acp.Text("work"))
		<-received
		if _, err := c.prompt("too early"); err == nil {
			t.Error("two turns run at the same time")
		}
		c.send(map[string]any{"jsonrpc": "2.0", "method": acp.MethodCancel, "params": acp.CancelParams{SessionID: c.session}})
		if reason, err := wait(); err != nil || reason != acp.Cancelled {
			t.Fatalf("the turn ended with %q, %v", reason, err)
		}
		c.mustPrompt("go on")
	})
}

func TestImagesAreSentToTheModel(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, says("A picture."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		if _, err := c.promptWith(nil, *acp.Text("look"), imageOf(picture(t, 20, 10)))(); err != nil {
			t.Fatal(err)
		}
		if got := s.model.Requests()[0].Turns[0]; got.Images != 1 || got.Text != "look" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestToolsOfToolServersCanBeCalled(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		type input struct {
			Word string `json:"word"`
		}
		mcp.AddTool(server, &mcp.Tool{Name: "words_echo", Description: "Says it again."}, func(_ context.Context,
			_ *mcp.CallToolRequest, in input) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "echo " + in.Word}}}, nil, nil
		})
		mcp.AddTool(server, &mcp.Tool{Name: "words_read", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
			func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "read"}}}, nil, nil
			})
		handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
		httpServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Token") != "token" {
				http.Error(w, "no token", http.StatusUnauthorized)
				return
			}
			handler.ServeHTTP(w, r)
		}))
		t.Cleanup(func() { httpServer.CloseClientConnections(); httpServer.Close() })
		s := newFixture(t, calls(scriptedmodel.Call{Name: "words_echo",
			Input: scriptedmodel.Input(map[string]any{"word": "hello", "security_risk": "LOW"})},
			scriptedmodel.Call{Name: "words_read"}), says("Done."))
		c := s.launch(t, []string{"--model", model, "--confirm", "--rate-actions"})
		c.servers = []acp.MCPServer{{Type: "http", Name: "router", URL: httpServer.URL,
			Headers: []acp.Header{{Name: "X-Token", Value: "token"}}}}
		c.mustOpen().mustPrompt("work")
		if got := s.model.Requests()[1]; got.Result("call_0_0").Text != "echo hello" ||
			got.Result("call_0_1").Text != "read" {
			t.Errorf("the model receives %q", got.Said())
		}
		// Both calls need a confirmation, although the server declares the tool words_read as
		// read-only.
		if len(c.requests) != 2 || c.requests[0].ToolCall.Title != "words_echo" ||
			c.requests[1].ToolCall.Title != "words_read" {
			t.Errorf("permission requests: %+v", c.requests)
		}
	})
}

func TestAMissingShellIsReported(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	c := s.launch(t, []string{"--model", "openai/scripted"}, "PATH=")
	if err := c.open(); err == nil || !strings.Contains(err.Error(), "no shell") {
		t.Errorf("got %v", err)
	}
}

func TestAMissingModelIsReportedAndTheSessionIsKept(t *testing.T) {
	t.Parallel()
	s := newFixture(t, says("One."), says("Two."))
	first := s.launch(t, []string{"--model", "openai/scripted"}).mustOpen()
	first.mustPrompt("the first message")
	_ = first.cmd.Process.Signal(syscall.SIGTERM)
	<-first.exited
	for _, args := range [][]string{nil, {"--model="}, {"--model=openai/"}} {
		c := s.launch(t, args)
		c.session = first.session
		for _, method := range []string{acp.MethodLoadSession, acp.MethodResumeSession, acp.MethodNewSession} {
			err := c.call(method, c.params(), nil)
			failure, ok := errors.AsType[*acp.Error](err)
			if !ok || !strings.Contains(failure.Message, "set llm_model") || failure.Data == nil ||
				failure.Data.Kind != "unusable" {
				t.Errorf("%s with %q: %v", method, args, err)
			}
		}
	}
	c := s.launch(t, []string{"--model", "openai/scripted"})
	c.session = first.session
	if err := c.call(acp.MethodLoadSession, c.params(), &struct{}{}); err != nil {
		t.Fatal(err)
	}
	c.mustPrompt("the second message")
	if last := s.model.Requests()[1]; !last.Contains("the first message") || !last.Contains("the second message") {
		t.Errorf("the model receives %q", last.Said())
	}
}

func TestARecordingIsReplayed(t *testing.T) {
	t.Parallel()
	const actions = `
		{"id":0,"source":"user","action":"message","args":{"content":"make a file"}},
		{"id":1,"source":"agent","action":"think","args":{"thought":"I shall make one."}},
		{"id":2,"source":"agent","action":"run","args":{"command":"echo run > run; date +%s","thought":"First."}},
		{"id":3,"source":"agent","cause":2,"observation":"run","content":"1","extras":{"command":"x",` +
		`"metadata":{"exit_code":0}}},
		{"id":4,"source":"agent","action":"write","args":{"path":"written","content":"written\n"}},
		{"id":5,"source":"agent","action":"edit","args":{"path":"written","command":"str_replace","old_str":"written",` +
		`"new_str":"edited"}},
		{"id":6,"source":"environment","observation":"agent_state_changed","extras":{"agent_state":"running"}},
		{"id":7,"source":"agent","action":"read","args":{"path":"written"}}`
	for name, c := range map[string]struct {
		recording string
		asksModel bool
	}{
		"ends with finish": {`[` + actions + `,{"id":8,"source":"agent","action":"finish","args":{"final_thought":"All ` +
			`done."}}]`, false},
		"ends with an action": {`{"trajectory":[` + actions + `]}`, true},
		"ends with a user message": {`[` + actions +
			`,{"id":8,"source":"agent","action":"message","args":{"content":"Done?"}},` +
			`{"id":9,"source":"user","action":"message","args":{"content":"No."}}]`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothAPIs(t, func(t *testing.T, model string) {
				s := newFixture(t, says("From the model."), says("Second."))
				file := filepath.Join(t.TempDir(), "recording.json")
				if err := os.WriteFile(file, []byte(c.recording), 0o600); err != nil {
					t.Fatal(err)
				}
				client := s.launch(t, []string{"--model", model, "--replay", file}).mustOpen()
				client.mustPrompt("context for the replay")
				if s.file(t, "run") != "run\n" || s.file(t, "written") != "edited\n" {
					t.Error("the actions were not executed")
				}
				if len(client.find(`"tool_call_update"`, `"completed"`)) != 4 || len(client.find(`"agent_thought_chunk"`,
					"I shall make one.")) != 1 {
					t.Errorf("updates: %s", client.received())
				}
				requests := s.model.Requests()
				if got := len(requests) > 0; got != c.asksModel {
					t.Fatalf("requests to the model: %v", got)
				}
				client.mustPrompt("and then?")
				requests = s.model.Requests()
				if last := requests[len(requests)-1]; !last.Contains("make a file") || !last.Contains("1\tedited") ||
					!last.Contains("First.") {
					t.Errorf("the model receives %q", last.Said())
				}
			})
		})
	}
}

func TestARecordingIsNotReplayedAgainInANewSession(t *testing.T) {
	t.Parallel()
	s := newFixture(t, says("From the model."))
	file := filepath.Join(t.TempDir(), "recording.json")
	if err := os.WriteFile(file, []byte(`[{"source":"agent","action":"run","args":{"command":"echo run >> run"}}]`),
		0o600); err != nil {
		t.Fatal(err)
	}
	client := s.launch(t, []string{"--model", "openai/scripted", "--replay", file})
	client.meta = acp.Meta{acp.MetaReplayed: true}
	client.mustOpen().mustPrompt("and then?")
	if len(s.model.Requests()) != 1 || len(client.find(`"tool_call"`)) != 0 {
		t.Errorf("updates: %s", client.received())
	}
}

func TestTheReasonOfARejectionReachesTheModel(t *testing.T) {
	t.Parallel()
	s := newFixture(t, calls(bash("mv a b")), says("Done."))
	client := s.launch(t, []string{"--model", "openai/scripted", "--confirm"})
	client.permit = func(acp.PermissionParams) string { return acp.RejectOnce }
	client.reason = "use git mv"
	client.mustOpen().mustPrompt("work")
	if got := s.model.Requests()[1]; !got.Contains("The user's reason: use git mv") {
		t.Errorf("the model receives %q", got.Said())
	}
}

func TestLoadingASessionSendsItsUpdatesAgainButResumingDoesNot(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, calls(bash("cd /; X=kept")), says("First."), calls(bash("pwd; echo $X")), says("Second."))
		first := s.launch(t, []string{"--model", model}).mustOpen()
		if reason, err := first.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("one"))(); err != nil ||
			reason != acp.EndTurn {
			t.Fatalf("the turn ended with %q, %v", reason, err)
		}
		_ = first.cmd.Process.Signal(syscall.SIGTERM)
		<-first.exited
		for _, method := range []string{acp.MethodResumeSession, acp.MethodLoadSession} {
			c := s.launch(t, []string{"--model", model})
			c.session = first.session
			if err := c.call(method, c.params(), &struct{}{}); err != nil {
				t.Fatal(err)
			}
			if method == acp.MethodResumeSession {
				if len(c.received()) != 0 {
					t.Errorf("resume sent %s", c.received())
				}
				_ = c.cmd.Process.Signal(syscall.SIGTERM)
				<-c.exited
				continue
			}
			equal := func(a, b json.RawMessage) bool { return string(a) == string(b) }
			if !slices.EqualFunc(c.received(), first.received(), equal) {
				t.Errorf("load sent %s\ninstead of %s", c.received(), first.received())
			}
			if reason, err := c.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("one"))(); err != nil ||
				reason != acp.EndTurn || len(s.model.Requests()) != 2 {
				t.Errorf("a prompt for a finished turn: %q, %v", reason, err)
			}
			c.mustPrompt("two")
			if got := s.model.Requests()[3].Result("call_2_0").Text; got != "/\nkept\n[exit code 0]" {
				t.Errorf("the shell's state is not restored: %q", got)
			}
		}
		c := s.launch(t, []string{"--model", model})
		c.session = "../../missing"
		if err := c.call(acp.MethodLoadSession, c.params(), &struct{}{}); err == nil || !strings.Contains(err.Error(),
			"no such session") {
			t.Errorf("got %v", err)
		}
	})
}
