//go:build clients

package integration_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// The test uses the JavaScript client that `make e2e-clients` installs.
func TestTheSocketIOClientFromNPMWorks(t *testing.T) {
	modules := os.Getenv("PARLEY_CLIENTS")
	if modules == "" {
		t.Fatal("PARLEY_CLIENTS is not set to a directory with socket.io-client: run make e2e-clients")
	}
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	script, err := os.ReadFile("testdata/client.mjs")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(modules, "client.mjs") // Node.js loads modules from this directory
	if err := os.WriteFile(file, script, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(key, last string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		output, err := exec.CommandContext(ctx, "node", file, ada.url, "talk", key, last).CombinedOutput()
		if _, failed := err.(*exec.ExitError); err != nil && !failed {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(output))
	}
	got := run(ada.key, "-1")
	for _, line := range []string{"connected", "user message work", "agent message One.", "user message again",
		"agent message Two.", "disconnected: io client disconnect"} {
		if !strings.Contains(got, line) {
			t.Errorf("%q is missing in\n%s", line, got)
		}
	}
	if strings.Count(got, " message ") != 4 {
		t.Errorf("there are other messages in\n%s", got)
	}
	if got := run("wrong", "-1"); !strings.HasPrefix(got, "refused: ") {
		t.Errorf("with a wrong key: %s", got)
	}
}
