package main_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// Most sessions of a node wait for their users. The memory of an idle session therefore determines
// how many sessions a node can run.
func TestAnIdleSessionReleasesItsMemory(t *testing.T) {
	t.Parallel()
	const most = 18 << 10 // kibibytes of both processes; a start takes 25 MiB
	sessions := map[string]*pod{"cold": newPod(t, session.Document{})}
	sessions["cold"].start(t)
	unbound := warm(t, newPod(t, session.Document{}))
	unbound.start(t)
	sessions["warm"] = unbound.pod
	for name, p := range sessions {
		p.waitReady(t)
		eventually(t, "the "+name+" pod is small", func() bool {
			return resident(t, p.cmd.Process.Pid)+resident(t, p.runtime(t)) < most
		})
		if !p.ready(t) {
			t.Errorf("the %s pod no longer answers", name)
		}
	}
}

func resident(t *testing.T, pid int) (kibibytes int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, found, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(found, &kibibytes); err != nil {
		t.Fatal(err)
	}
	return kibibytes
}
