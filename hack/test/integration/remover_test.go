//go:build browser

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
)

// removerCommand is the argument that turns this test binary into an agent. The tool calls of this
// agent delete and move files. The shipped agent has no such tools: it deletes and moves files only
// with shell commands.
const removerCommand = "remover"

func init() {
	if len(os.Args) > 1 && os.Args[1] == removerCommand {
		runRemover()
	}
}

func addRemover(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addAgent(t, "Remover", "protocol: acp\nconfirms: true\ncommand: ["+self+", "+removerCommand+"]\n")
}

// remover is an agent that understands the lines "delete FILE…" and "move FILE FILE" in a message.
// It asks for permission, and then performs exactly the action in its request.
type remover struct {
	conn *acp.Conn
	dir  string
	turn int
}

func runRemover() {
	r := &remover{conn: acp.NewConn(os.Stdin, os.Stdout)}
	if err := r.conn.Serve(context.Background(), r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (r *remover) Notification(string, json.RawMessage) {}

func (r *remover) Noise(string) {}

func (r *remover) Request(ctx context.Context, method string, params json.RawMessage) func() (any, error) {
	switch method {
	case acp.MethodInitialize:
		return func() (any, error) { return acp.InitializeResult{ProtocolVersion: acp.Version}, nil }
	case acp.MethodNewSession:
		return func() (any, error) {
			var p acp.SessionParams
			err := json.Unmarshal(params, &p)
			r.dir = p.Cwd
			return acp.NewSessionResult{SessionID: "s"}, err
		}
	case acp.MethodPrompt:
		return func() (any, error) {
			var p acp.PromptParams
			if err := json.Unmarshal(params, &p); err != nil {
				return nil, err
			}
			for _, block := range p.Prompt {
				for line := range strings.Lines(block.Text) {
					if err := r.obey(ctx, strings.Fields(line)); err != nil {
						return nil, err
					}
				}
			}
			return acp.PromptResult{StopReason: acp.EndTurn}, nil
		}
	}
	return acp.NoMethod(method)
}

func (r *remover) obey(ctx context.Context, words []string) error {
	if len(words) < 2 || words[0] != "delete" && words[0] != "move" {
		return nil
	}
	var paths []string
	for _, name := range words[1:] {
		paths = append(paths, filepath.Join(r.dir, name))
	}
	r.turn++
	call := acp.Update{ToolCallID: fmt.Sprint("call-", r.turn), Title: "Tidy up", ToolKind: words[0], Status: acp.Pending}
	if words[0] == "move" {
		call.RawInput, _ = json.Marshal(map[string]string{"source": paths[0], "destination": paths[1]})
	}
	for _, path := range paths {
		call.Locations = append(call.Locations, acp.Location{Path: path})
	}
	var answer acp.PermissionResult
	if err := r.conn.Call(ctx, acp.MethodRequestPermission, acp.PermissionParams{SessionID: "s", ToolCall: call,
		Options: []acp.PermissionOption{{OptionID: "y", Name: "Yes", Kind: acp.AllowOnce},
			{OptionID: "n", Name: "No", Kind: acp.RejectOnce}}}, &answer); err != nil {
		return err
	}
	done := acp.Update{Kind: acp.ToolUpdate, ToolCallID: call.ToolCallID, Status: acp.Failed}
	if answer.Outcome.OptionID == "y" && perform(words[0], paths) == nil {
		done.Status = acp.Completed
	}
	update, err := acp.Encode(done)
	if err != nil {
		return err
	}
	return r.conn.Notify(acp.MethodUpdate, acp.UpdateParams{SessionID: "s", Update: update})
}

func perform(operation string, paths []string) error {
	if operation == "move" {
		return os.Rename(paths[0], paths[1])
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}
