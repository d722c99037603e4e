package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const testTimeout = 30 * time.Second

// shell returns a process that runs a script. The process is ready when the script has printed
// "up".
func shell(name, logDir, script string) Process {
	return Process{
		Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Grace: testTimeout,
		Ready: func(context.Context) error {
			if !strings.Contains(readLog(logDir, name), "up") {
				return errors.New("not up")
			}
			return nil
		},
	}
}

// forever is a script that does not end. It runs "sleep" in the background, because a shell handles
// signals during "wait", but not while a command runs in the foreground.
const forever = "sleep 1000 & echo up $!; wait"

func readLog(dir, name string) string {
	content, _ := os.ReadFile(filepath.Join(dir, name+".log"))
	return string(content)
}

func supervise(t *testing.T) (*Supervisor, context.Context, string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	s, ctx := Supervise(ctx, dir)
	t.Cleanup(func() { s.Stop(nil) })
	return s, ctx, dir
}

func mustStart(ctx context.Context, t *testing.T, s *Supervisor, p Process) {
	t.Helper()
	if err := s.Start(ctx, p); err != nil {
		t.Fatal(err)
	}
}

// running reports whether a process exists and is not a zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	err := Retry(ctx, 10*time.Millisecond, func(context.Context) error {
		if running(pid) {
			return fmt.Errorf("process %d is still running", pid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestProcessesAreStoppedInReverseOrder(t *testing.T) {
	s, ctx, dir := supervise(t)
	order := filepath.Join(dir, "order")
	for _, name := range []string{"first", "second", "third"} {
		mustStart(ctx, t, s, shell(name, dir, fmt.Sprintf("trap 'echo %s >>%s; exit' TERM; %s", name, order, forever)))
	}
	s.Stop(nil)
	got, err := os.ReadFile(order)
	if want := "third\nsecond\nfirst\n"; err != nil || string(got) != want {
		t.Errorf("stopped in the order %q (%v), want %q", got, err, want)
	}
	if ctx.Err() != nil {
		t.Errorf("a requested stop was reported as a death: %v", context.Cause(ctx))
	}
}

func TestProcessThatIgnoresSIGTERMIsKilledAfterItsGracePeriod(t *testing.T) {
	s, ctx, dir := supervise(t)
	stubborn := shell("stubborn", dir, "trap '' TERM; "+forever)
	stubborn.Grace = 50 * time.Millisecond
	mustStart(ctx, t, s, stubborn)
	s.Stop(nil)
	if status := s.children[0].cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("ended by %v, want SIGKILL", status.Signal())
	}
}

func TestForcedStopKillsWithoutWaiting(t *testing.T) {
	s, ctx, dir := supervise(t)
	mustStart(ctx, t, s, shell("stubborn", dir, "trap '' TERM; "+forever))
	force := make(chan struct{})
	close(force)
	start := time.Now()
	s.Stop(force)
	if took := time.Since(start); took >= testTimeout {
		t.Errorf("took %s", took)
	}
}

func TestExitErrorContainsTheNameTheStatusAndTheLastLogError(t *testing.T) {
	s, ctx, dir := supervise(t)
	mustStart(ctx, t, s, Process{
		Name: "database", Path: "/bin/sh", Grace: testTimeout,
		Args: []string{"-c", "echo Error: no disk; echo bye; exit 3"},
	})
	<-ctx.Done()
	var death *Death
	if !errors.As(context.Cause(ctx), &death) {
		t.Fatalf("ended with %v", context.Cause(ctx))
	}
	for _, want := range []string{"database died", "exit status 3", filepath.Join(dir, "database.log"), "Error: no disk"} {
		if !strings.Contains(death.Error(), want) {
			t.Errorf("%q does not say %q", death, want)
		}
	}
}

func TestStartFailsIfTheProcessExitsBeforeItIsReady(t *testing.T) {
	s, ctx, dir := supervise(t)
	err := s.Start(ctx, shell("early", dir, "exit 1"))
	var death *Death
	if !errors.As(err, &death) || death.Name != "early" {
		t.Errorf("got %v, want the death of early", err)
	}
}

func TestChildrenOfAProcessAreKilledWithIt(t *testing.T) {
	s, ctx, dir := supervise(t)
	mustStart(ctx, t, s, shell("parent", dir, forever))
	grandchild, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(readLog(dir, "parent"), "up ")))
	if err != nil || !running(grandchild) {
		t.Fatalf("no grandchild %d: %v", grandchild, err)
	}
	if err := syscall.Kill(s.children[0].cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, grandchild)
}

func TestLogOfThePreviousRunIsKept(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"one", "two", "three"} {
		log, err := RotateLog(filepath.Join(dir, "x.log"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(log, text)
		log.Close()
	}
	previous, _ := os.ReadFile(filepath.Join(dir, "x.log.1"))
	if got := readLog(dir, "x") + " " + string(previous); got != "three two" {
		t.Errorf("got %q", got)
	}
}

func TestStoppedProcessIsNotReportedAsDeadAndCanBeRestarted(t *testing.T) {
	s, ctx, dir := supervise(t)
	mustStart(ctx, t, s, shell("one", dir, forever))
	first := s.PID("one")
	s.End("one")
	awaitEnd(t, first)
	if ctx.Err() != nil || s.PID("one") != 0 {
		t.Fatalf("a requested stop was reported as a death: %v", context.Cause(ctx))
	}
	mustStart(ctx, t, s, shell("one", dir, forever))
	if again := s.PID("one"); again == 0 || again == first {
		t.Errorf("process %d follows process %d", again, first)
	}
}
