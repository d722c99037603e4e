package tools

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The environment of the runtime and the supervisor may contain keys of the user.
func TestTheEnvironmentOfParentProcessesIsNotRead(t *testing.T) {
	t.Parallel()
	if os.Getenv("PARLEY_TEST_MARKED") == "parent" {
		for _, pid := range withVariable("PARLEY_TEST_MARKED=parent") {
			if pid == os.Getppid() {
				t.Error("the environment of the parent was read")
			}
		}
		return
	}
	command := exec.CommandContext(t.Context(), "sh", "-c", `"$0" -test.run="^$1$"; exit $?`, os.Args[0], t.Name())
	command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PARLEY_TEST_MARKED=")
	}), "PARLEY_TEST_MARKED=parent")
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
