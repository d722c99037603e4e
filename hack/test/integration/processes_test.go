//go:build gitea

package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// processesIn returns the processes of the session whose pod has this directory. The only child of
// the supervisor is the runtime. agents contains all descendants of the runtime.
func processesIn(t *testing.T, dir string) (supervisor int, agents []int) {
	t.Helper()
	children := map[int][]int{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // a process may have ended
		var pid, parent int
		var state string
		before, after, _ := strings.Cut(string(text), " (")
		_, _ = fmt.Sscan(before, &pid)
		_, _ = fmt.Sscan(after[strings.LastIndexByte(after, ')')+1:], &state, &parent)
		children[parent] = append(children[parent], pid)
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		program, _ := os.Readlink(filepath.Join(filepath.Dir(file), "exe"))
		if filepath.Base(program) == "supervisor" && strings.Contains(string(environ), dir) {
			supervisor = pid
		}
	}
	if len(children[supervisor]) != 1 {
		t.Fatalf("the supervisor %d has the children %v", supervisor, children[supervisor])
	}
	agents = slices.Clone(children[children[supervisor][0]])
	for i := 0; i < len(agents); i++ {
		agents = append(agents, children[agents[i]]...)
	}
	return supervisor, agents
}
