package supervise

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

// exited and killed return wait statuses as the kernel encodes them.
func exited(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }

func killed(by syscall.Signal) syscall.WaitStatus { return syscall.WaitStatus(by) }

func patient(pid int) *child { return &child{pid: pid, patience: time.Hour, probes: make(chan int)} }

func signalOf(cmd *exec.Cmd) syscall.Signal {
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o600))
}

func start(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

func TestTheTerminationMessageContainsTheReason(t *testing.T) {
	for name, c := range map[string]struct {
		child  child
		status syscall.WaitStatus
		ranOut bool
		want   string
	}{
		"it ended by itself":                         {child{}, exited(0), false, ""},
		"it ended by itself after a request":         {child{silent: true}, exited(0), true, ""},
		"it failed":                                  {child{}, exited(1), false, ""},
		"it failed after memory ran out elsewhere":   {child{}, exited(1), true, ""},
		"the kernel killed it":                       {child{}, killed(syscall.SIGKILL), true, killedForMemory},
		"the kernel killed it while it was silent":   {child{silent: true}, killed(syscall.SIGKILL), true, killedForMemory},
		"another process killed it":                  {child{}, killed(syscall.SIGKILL), false, ""},
		"another process killed it in its silence":   {child{silent: true}, killed(syscall.SIGKILL), false, ""},
		"it was silent, and ended when asked to":     {child{silent: true}, exited(143), false, endedAsSilent},
		"it was silent, and was ended by the signal": {child{silent: true}, killed(syscall.SIGTERM), false, endedAsSilent},
		"it was silent, and had to be killed": {child{silent: true, killed: true}, killed(syscall.SIGKILL), true,
			endedAsSilent},
		"it was stopped, and had to be killed": {child{killed: true}, killed(syscall.SIGKILL), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cgroups := t.TempDir()
			counter := filepath.Join(cgroups, "memory.events")
			write(t, counter, "oom 3\noom_kill 3\n")
			memory := process.WatchMemory(cgroups)
			if c.ranOut {
				write(t, counter, "oom 4\noom_kill 4\n")
			}
			if got := c.child.reason(c.status, memory); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestThreeMissedProbesInARowEndTheSession(t *testing.T) {
	cmd := start(t, "exec sleep 1000")
	c := patient(cmd.Process.Pid)
	for _, silent := range []int{1, 2, 0, 2} {
		c.probed(silent)
	}
	if c.silent || c.late != nil || c.probes == nil {
		t.Fatalf("it was asked to end too early: %+v", c)
	}
	c.probed(3)
	_ = cmd.Wait()
	if !c.silent || c.killed || signalOf(cmd) != syscall.SIGTERM {
		t.Errorf("it was ended by %s: %+v", signalOf(cmd), c)
	}
	if c.probes != nil || c.late == nil {
		t.Error("it is still probed, or has no deadline")
	}
}

func TestASecondSignalDoesNotExtendTheGracePeriod(t *testing.T) {
	deaf := filepath.Join(t.TempDir(), "deaf")
	cmd := start(t, "trap '' TERM INT; echo > "+deaf+"; exec sleep 1000")
	for _, err := os.Stat(deaf); err != nil; _, err = os.Stat(deaf) {
		time.Sleep(time.Millisecond)
	}
	c := patient(cmd.Process.Pid)
	c.patience = 20 * time.Millisecond
	c.pass(syscall.SIGTERM)
	late := c.late
	c.pass(syscall.SIGINT)
	if c.late != late {
		t.Error("the second signal restarted the grace period")
	}
	<-c.late
	c.kill()
	_ = cmd.Wait()
	if !c.killed || signalOf(cmd) != syscall.SIGKILL {
		t.Errorf("it was ended by %s", signalOf(cmd))
	}
}

func TestOnlyStopSignalsStartTheGracePeriod(t *testing.T) {
	cmd := start(t, "exec sleep 1000")
	c := patient(cmd.Process.Pid)
	c.pass(syscall.SIGUSR1)
	_ = cmd.Wait()
	if c.late != nil || c.probes == nil || signalOf(cmd) != syscall.SIGUSR1 {
		t.Errorf("it was ended by %s: %+v", signalOf(cmd), c)
	}
}

func serve(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			answer(connection)
		}
	}()
	return listener.Addr().String()
}

func TestAProbeSucceedsOnlyIfItGetsStatus200InTime(t *testing.T) {
	for text, want := range map[string]bool{
		"HTTP/1.0 200 OK\r\n\r\nalive\n":       true,
		"HTTP/1.0 503 Service Unavailable\r\n": false,
		"HTTP/1.0 20":                          false,
		"":                                     false,
	} {
		address := serve(t, func(connection net.Conn) {
			_, _ = connection.Write([]byte(text))
			if text == "" {
				time.Sleep(time.Second) // the server keeps the connection open without an answer
			}
			_ = connection.Close()
		})
		if got := answers(address, 200*time.Millisecond); got != want {
			t.Errorf("%q: alive is %t", text, got)
		}
	}
	if answers("127.0.0.1:1", time.Second) {
		t.Error("a refused connection counts as alive")
	}
}

func TestAnAnswerResetsTheCountOfMissedProbes(t *testing.T) {
	turn := 0
	address := serve(t, func(connection net.Conn) {
		if turn++; turn == 1 || turn == 4 {
			_, _ = connection.Write(answer)
		}
		_ = connection.Close()
	})
	silences := probe(Config{BindAddress: address, AskInterval: time.Millisecond, AskTimeout: time.Second})
	var got []int
	for range 5 {
		got = append(got, <-silences)
	}
	if want := []int{0, 1, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("the silences in a row are %v, want %v", got, want)
	}
}

func TestOnlyAllowedVariablesReachTheRuntime(t *testing.T) {
	for _, variable := range os.Environ() { // t.Setenv restores the variables after the test
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	os.Clearenv()
	for _, name := range []string{"PATH", "PARLEY_SECRET_LLM_API_KEY", Attempt, "no_proxy", // allowed
		RanAttempt, "PARLEY_SESSION_DIR", "PARLEY_SECRET", // variables of Parley that the pod does not set
		"HTTPS_PROXY", "SSL_CERT_FILE", "GODEBUG", "LD_PRELOAD", "HOME", "NODE_ENV"} {
		t.Setenv(name, "x")
	}
	must(t, IsolateEnvironment(false, []string{Attempt, "no_proxy", "HTTP_PROXY"}))
	image, err := TakeImage()
	must(t, err)
	allowed := os.Environ()
	slices.Sort(allowed)
	slices.Sort(image)
	if want := []string{"PARLEY_ATTEMPT=x", "PARLEY_SECRET_LLM_API_KEY=x", "PATH=x", "no_proxy=x"}; !slices.Equal(allowed,
		want) {
		t.Errorf("the runtime has %q", allowed)
	}
	if want := []string{"GODEBUG=x", "HOME=x", "HTTPS_PROXY=x", "LD_PRELOAD=x", "NODE_ENV=x",
		"SSL_CERT_FILE=x"}; !slices.Equal(image, want) {
		t.Errorf("the agent has %q", image)
	}
}

func TestAnInvalidDurationIsReplacedByTheDefault(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 20 * time.Second, "soon": 20 * time.Second, "-1s": 20 * time.Second, "0s": 20 * time.Second,
		"3s": 3 * time.Second,
	} {
		t.Setenv("PARLEY_ASK_INTERVAL", text)
		if got := ReadConfig().AskInterval; got != want {
			t.Errorf("%q: got %s", text, got)
		}
	}
}

func TestAKilledProcessHasTheExitCodeThatAShellWouldReport(t *testing.T) {
	for status, want := range map[syscall.WaitStatus]int{exited(0): 0, exited(3): 3, killed(syscall.SIGTERM): 143} {
		if got := exitCode(status); got != want {
			t.Errorf("%d: got %d, want %d", status, got, want)
		}
	}
}

func TestRemainingProcessesAreKilled(t *testing.T) {
	cmd := start(t, "trap : TERM INT; sleep 1000 & wait")
	if !slices.Contains(children(), cmd.Process.Pid) {
		t.Fatal("a child is not found")
	}
	began := time.Now()
	killOrphans()
	if slices.Contains(children(), cmd.Process.Pid) || time.Since(began) > lastReap {
		t.Error("a child still runs")
	}
}
