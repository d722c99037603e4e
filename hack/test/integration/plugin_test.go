package integration_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (p *person) plugin(t *testing.T, in io.Reader, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if args = append(args, "-n", p.namespace); args[0] != "status" { // without a login, status does not use the facade
		args = append(args, "--facade", p.url)
	}
	command := exec.CommandContext(ctx, program("kubectl-parley"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+adminKubeconfig())
	command.Stdin = in
	var output, errs bytes.Buffer
	command.Stdout, command.Stderr = &output, &errs
	if err := command.Run(); err != nil {
		return errs.String(), err
	}
	return output.String(), nil
}

func TestASessionCanBeUsedFromATerminal(t *testing.T) {
	ada := newPerson(t, map[string]any{"confirmation_mode": true},
		says("May I?", bash("echo two >> file")), says("Done."), says("You are welcome."))
	ada.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateConfirmation)
	out, err := ada.plugin(t, strings.NewReader("y\n"), "chat", "talk")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := ada.plugin(t, strings.NewReader("Thank you\n"), "chat", "talk"); err != nil || !strings.HasSuffix(out,
		"> Thank you\nYou are welcome.\n") {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := ada.plugin(t, strings.NewReader(""), "chat", "talk")
	if err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	for _, line := range []string{"> work\n", "May I?\n", "  $ echo two >> file\n", "? Run this action? y, n or n REASON",
		"Done.\n", "> Thank you\n", "You are welcome.\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("%q is missing in\n%s", line, got)
		}
	}
	patch, err := ada.plugin(t, nil, "diff", "talk")
	if err != nil || !strings.Contains(patch, "\n+two\n") {
		t.Errorf("the diff is %s, %v", patch, err)
	}
	ada.stop(t, "talk")
	testenv.Await(t, func() error {
		archived, err := ada.plugin(t, nil, "diff", "talk")
		if err == nil && archived != patch {
			t.Errorf("the archived diff is %s", archived)
		}
		return err
	})
}
