package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func withShells(t *testing.T, test func(t *testing.T, s *Shell)) {
	for _, name := range []string{"bash", "sh"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newTestShell(t, name, "", t.TempDir()))
		})
	}
}

func newTestShell(t *testing.T, name, state, dir string) *Shell {
	t.Helper()
	s, err := NewShell(dir, fmt.Sprintf("test-%s-%s-%d", filepath.Base(dir), strings.ReplaceAll(t.Name(), "/", "-"),
		len(state)), state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if s.program, err = exec.LookPath(name); err != nil {
		t.Skip(name, "is not installed")
	}
	s.bash = name == "bash"
	return s
}

func (s *Shell) do(t *testing.T, in map[string]any) Outcome {
	t.Helper()
	encoded, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return s.run(context.Background(), encoded)
}

func (s *Shell) expect(t *testing.T, command, want string) Outcome {
	t.Helper()
	got := s.do(t, map[string]any{"command": command})
	if got.Text != want {
		t.Errorf("%q prints %q, want %q", command, got.Text, want)
	}
	return got
}

// expectRunning starts a command that does not end, or sends input to such a command. It then calls
// the tool until the collected output equals the parameter want: on a slow machine, one call may
// return only a part of the output.
func (s *Shell) expectRunning(t *testing.T, in map[string]any, want string) {
	t.Helper()
	output := ""
	for deadline := time.Now().Add(time.Minute); ; in = map[string]any{"command": "", "is_input": true} {
		in["timeout"] = 0.3
		got := s.do(t, in)
		raw, _ := got.Raw.(bashOutput)
		output += raw.Output
		if raw.ExitCode != nil || !strings.Contains(got.Text, "[The command is still running") || time.Now().After(deadline) {
			t.Fatalf("it printed %q, then got %+v", output, got)
		}
		if output == want {
			return
		}
	}
}

func TestTheShellKeepsItsState(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		s.expect(t, "mkdir -p 'a b' && cd 'a b' && export X='it'\\''s\ntwo lines' && Y=2 && f() { echo f; }", "[exit code 0]")
		s.expect(t, `echo "$X" $Y; f; basename "$PWD"; false`, "it's\ntwo lines 2\nf\na b\n[exit code 1]")
		if got := s.do(t, map[string]any{"command": "echo 'unfinished"}); !strings.HasSuffix(got.Text, "[exit code 2]") {
			t.Errorf("got %q", got.Text)
		}
		s.expect(t, "set -eu; true", "[exit code 0]")
		s.expect(t, "false; echo $NOT_SET went on", "went on\n[exit code 0]")
		s.expect(t, "exec >/dev/null; echo lost", "[exit code 0]")
		s.expect(t, "read line || echo no input", "no input\n[exit code 0]")
		s.expect(t, "return 7", "[exit code 7]")
	})
}

func TestTheStateOfAShellSurvivesItsExit(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		s.expect(t, "mkdir sub; cd sub; export X=1; umask 077", "[exit code 0]")
		if got := s.do(t, map[string]any{"command": "X=2; echo said; exit 3"}); !strings.Contains(got.Text,
			"said\n[exit code 3]\n[This command ended the shell") {
			t.Errorf("got %q", got.Text)
		}
		s.expect(t, "echo $X $(basename $PWD) $(umask); sh -c 'echo $X'", "1 sub 0077\n1\n[exit code 0]")
	})
}

func TestANewAgentRestoresTheShellState(t *testing.T) {
	t.Setenv("GIVEN_SECRET", "do-not-keep-this")
	for _, name := range []string{"bash", "sh"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := newTestShell(t, name, "", dir)
			got := first.do(t, map[string]any{"command": "mkdir x; cd x; export A=\"q'\\\"$\"; B='1\n2'; unset GIVEN_SECRET; " +
				"export C=$HOME"})
			if got.Shell == "" || strings.Contains(got.Shell, "do-not-keep") {
				t.Fatalf("the state is %q", got.Shell)
			}
			if again := first.do(t, map[string]any{"command": "true"}); again.Shell != "" {
				t.Errorf("an unchanged state is reported again: %q", again.Shell)
			}
			second := newTestShell(t, name, got.Shell, dir)
			second.expect(t, `echo "$A" "$B" "${GIVEN_SECRET-unset}"; basename "$PWD"; sh -c 'echo "$A" "$B"'`,
				"q'\"$ 1\n2 unset\nx\nq'\"$ \n[exit code 0]")
		})
	}
	t.Run("functions and options of bash", func(t *testing.T) {
		dir := t.TempDir()
		first := newTestShell(t, "bash", "", dir)
		got := first.do(t, map[string]any{"command": "f() { echo \"f $1\"; }; set -o pipefail; shopt -s nullglob; declare " +
			"-A m=([k]=v); IFS=,"})
		second := newTestShell(t, "bash", got.Shell, dir)
		second.expect(t, "f 1; false | true; echo $? ${m[k]} *.none", "f 1\n1 v\n[exit code 0]")
	})
}

func TestALongCommandKeepsRunningAndAcceptsInput(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		s.expectRunning(t, map[string]any{"command": "echo ready; read a; echo got $a; read b; echo got $b",
			"interactive": true}, "ready\n")
		if got := s.do(t, map[string]any{"command": "echo other"}); !got.IsError || !strings.Contains(got.Text,
			"still running") {
			t.Errorf("got %+v", got)
		}
		s.expectRunning(t, map[string]any{"command": "one", "is_input": "true"}, "got one\n")
		if got := s.do(t, map[string]any{"command": "two", "is_input": true}); got.Text != "got two\n[exit code 0]" {
			t.Errorf("got %+v", got)
		}
		if got := s.do(t, map[string]any{"command": "three", "is_input": true}); !got.IsError {
			t.Errorf("got %+v", got)
		}
	})
}

func TestNoShellStartsAfterTheSessionHasClosed(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		s.Close()
		if got := s.do(t, map[string]any{"command": "touch started"}); !strings.Contains(got.Text, "the session is closed") {
			t.Errorf("got %+v", got)
		}
		if len(s.leaders) > 0 {
			t.Errorf("%d shells started", len(s.leaders))
		}
	})
}

// awaitSleeping waits until n processes of the shell run sleep, and until the shell itself waits for
// one of them.
func (s *Shell) awaitSleeping(t *testing.T, n int) {
	t.Helper()
	read := func(pid int, file string) string {
		text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
		return string(text)
	}
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(5 * time.Millisecond) {
		sleeping := 0
		for _, pid := range inSession(s.process.pid()) {
			if strings.HasPrefix(read(pid, "cmdline"), "sleep") {
				sleeping++
			}
		}
		if sleeping == n && strings.Contains(read(s.process.pid(), "stat"), ") S ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d processes run sleep, want %d", sleeping, n)
		}
	}
}

func TestTheShellIsSignalledBeforeItsCommand(t *testing.T) {
	for _, c := range []struct{ pids, want []int }{
		{[]int{10001, 10002, 9998}, []int{9998, 10001, 10002}}, // the order of the names in /proc
		{[]int{9998, 9999}, []int{9998, 9999}},
		{[]int{10001}, []int{10001}}, // the shell has ended, and its PID may belong to another process
	} {
		if got := shellFirst(9998, slices.Clone(c.pids)); !slices.Equal(got, c.want) {
			t.Errorf("the processes %v are signalled in the order %v", c.pids, got)
		}
	}
}

func TestCtrlCInterruptsOnlyTheCommand(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		s.expect(t, "X=1; sleep 1000 & echo $! > pid", "[exit code 0]")
		s.expectRunning(t, map[string]any{"command": "echo begun; sleep 1000; echo went on"}, "begun\n")
		s.awaitSleeping(t, 2) // a shell that is just starting a program may lose the signal
		if got := s.do(t, map[string]any{"command": "C-c", "is_input": true}); strings.Contains(got.Text, "went on") ||
			!strings.Contains(got.Text, "exit code 130") {
			t.Errorf("got %+v", got)
		}
		s.expect(t, "echo $X; kill -0 $(cat pid) && echo alive", "1\nalive\n[exit code 0]")
		s.Close()
		pid, _ := os.ReadFile(filepath.Join(s.dir, "pid"))
		for deadline := time.Now().Add(10 * time.Second); ; <-time.After(5 * time.Millisecond) {
			stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
			if err != nil || strings.Contains(string(stat), ") Z ") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("a process outlives the session")
			}
		}
	})
}

func TestBackgroundProcessesDoNotDelayTheEndOfACommand(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		s.expect(t, "sleep 1000 & true", "[exit code 0]")
		got := s.do(t, map[string]any{"command": "echo said; exit 3", "timeout": 30})
		if !strings.HasPrefix(got.Text, "said\n[exit code 3]") {
			t.Errorf("exit of the shell: got %q", got.Text)
		}
		s.expect(t, "sleep 1000 & true", "[exit code 0]")
		s.expectRunning(t, map[string]any{"command": "echo begun; sleep 1000"}, "begun\n")
		got = s.do(t, map[string]any{"command": "C-c", "is_input": true, "timeout": 30})
		if !strings.HasPrefix(got.Text, "[exit code 130]") {
			t.Errorf("ctrl-c: got %q", got.Text)
		}
	})
}

func TestTheLastOutputOfAShellIsReadDespiteBackgroundOutput(t *testing.T) {
	t.Parallel()
	for name, writeMore := range map[string]func(background *os.File){
		"no background output": func(*os.File) {},
		"endless background output": func(background *os.File) {
			for err := error(nil); err == nil; {
				_, err = background.WriteString("and more\n")
			}
		},
	} {
		output, background, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat("x", 60<<10) + "the last output"
		if _, err := background.WriteString(text); err != nil {
			t.Fatal(err)
		}
		o := newOutput("\x1dend\x1d")
		o.cut = newCutter(1 << 30)
		var writing, waiting sync.WaitGroup
		writing.Go(func() { writeMore(background) })
		waiting.Go(func() { o.awaitRest(output) })
		// On a busy machine, the reader may start after awaitRest has set the read deadline. To
		// simulate this, wait until the deadline makes connection.Read fail, and then start the
		// reader.
		connection, err := output.SyscallConn()
		for ; err == nil; err = connection.Read(func(uintptr) bool { return true }) {
			<-time.After(time.Millisecond)
		}
		go o.read(output)
		waiting.Wait()
		if got := o.take(false); !strings.HasPrefix(got, text) {
			t.Errorf("%s: read %d bytes of %d", name, len(got), len(text))
		}
		_ = background.Close()
		writing.Wait()
	}
}

func TestLongOutputIsTruncatedInTheMiddle(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		got := s.do(t, map[string]any{"command": "i=0; while [ $i -lt 9000 ]; do echo line-$i-é; i=$((i+1)); done"}).Text
		if len(got) > maxOutput+200 || !strings.HasPrefix(got, "line-0-é\n") || !strings.HasSuffix(got,
			"line-8999-é\n[exit code 0]") || !strings.Contains(got, "characters were left out") {
			t.Errorf("%d characters: %.60q … %q", len(got), got, got[len(got)-60:])
		}
	})
}

func TestOutputIsReportedWhileACommandRuns(t *testing.T) {
	t.Parallel()
	withShells(t, func(t *testing.T, s *Shell) {
		const wait = "; until test -e seen; do sleep 0.01; done; rm seen; "
		seen := filepath.Join(s.dir, "seen")
		var last string
		s.Progress = func(output string) {
			if last = output; strings.HasSuffix(output, "part") {
				if err := os.WriteFile(seen, nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		}
		s.expect(t, "echo one; printf part"+wait+"echo two", "one\nparttwo\n[exit code 0]")
		if last != "one\npart" {
			t.Errorf("reported %q", last)
		}
		got := s.do(t, map[string]any{"command": "i=0; while [ $i -lt 9000 ]; do echo line-$i-é; i=$((i+1)); done; " +
			"printf part" + wait}).Text
		if len(last) > maxProgress || !strings.HasPrefix(strings.TrimSpace(last), "line-") ||
			!strings.HasSuffix(last, "line-8999-é\npart") || !strings.HasPrefix(got, "line-0-é\n") {
			t.Errorf("reported %d characters: %.60q", len(last), last)
		}
		last = ""
		s.expect(t, "sleep 0.6", "[exit code 0]")
		if last != "" {
			t.Errorf("a silent command reported %q", last)
		}
	})
}

func TestCommandsDoNotGetTheModelsKey(t *testing.T) {
	t.Setenv("LLM_API_KEY", "placeholder")
	s := newTestShell(t, "sh", "", t.TempDir())
	s.expect(t, "echo ${LLM_API_KEY-none}", "none\n[exit code 0]")
}
