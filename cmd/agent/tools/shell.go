package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoShell is returned if the image has no shell.
var ErrNoShell = errors.New("this image has no shell: neither bash nor sh is in its PATH. The agent needs one to " +
	"work; choose an image that has a shell")

const (
	defaultTimeout = 120 * time.Second
	// graceAfterInterrupt is how long a command may take to end after Ctrl-C. Then the agent kills
	// the command.
	graceAfterInterrupt = 2 * time.Second
	// progressInterval is the minimum time between two calls of Progress.
	progressInterval = 250 * time.Millisecond
	// markerVariable is in the environment of all processes of the shell, so that the processes of a
	// killed agent can be found.
	markerVariable = "PARLEY_AGENT_SESSION"
)

// Shell is a shell for a whole session: its directory, variables and functions persist between
// calls. If a command ends the shell, or is interrupted, a new shell starts in the state after the
// last completed command.
type Shell struct {
	program string
	bash    bool
	dir     string
	// cwd is the directory of the shell after the last command.
	cwd     string
	session string
	scratch string

	process *process
	// state is a script that restores the state of the last shell.
	state string
	// running is the command that is still running, even if the tool call that started it has timed
	// out.
	running *command
	// Progress receives the last part of the output whenever a running command has written output.
	Progress func(output string)
	// background holds the PIDs of processes that commands started in the background.
	background map[int]bool
	number     int

	// started is set before the first shell starts. Close sets closed. leaders holds the PIDs of all
	// shells. mu guards these fields, because Close may run at any time.
	mu              sync.Mutex
	started, closed bool
	leaders         []int
}

type command struct {
	input *os.File
}

type completion struct {
	status int
	// state is the shell's state; empty if the shell has exited.
	state string
	// exited is set if the command ended the shell.
	exited bool
}

// NewShell finds a shell program. The first command starts it.
func NewShell(dir, session, state string) (*Shell, error) {
	s := &Shell{dir: dir, cwd: dir, session: session, state: state}
	var err error
	if s.program, err = exec.LookPath("bash"); err == nil {
		s.bash = true
	} else if s.program, err = exec.LookPath("sh"); err != nil {
		return nil, ErrNoShell
	}
	if s.scratch, err = os.MkdirTemp("", "parley-agent-"); err != nil {
		return nil, fmt.Errorf("create a directory for the shell: %w", err)
	}
	return s, nil
}

// KillLeftovers kills all processes that shells of this session started. An earlier agent may have
// left such processes running when it was killed. KillLeftovers can be slow: it reads the
// environment of every visible process, and the kernel delays each read while that process changes
// its memory.
func (s *Shell) KillLeftovers() {
	for _, pid := range withVariable(markerVariable + "=" + s.session) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Close kills the shells and all processes that they started.
func (s *Shell) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, leader := range s.leaders {
		for _, pid := range inSession(leader) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if s.started {
		s.KillLeftovers()
	}
	_ = os.RemoveAll(s.scratch)
}

// begin starts a command, and a shell if there is none.
func (s *Shell) begin(script string, interactive bool) (*command, error) {
	if s.process != nil {
		select {
		case <-s.process.completions: // the shell exited while it was idle
			s.process = nil
		default:
		}
	}
	if s.process == nil {
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	return s.submit(script, interactive)
}

func (s *Shell) submit(script string, interactive bool) (*command, error) {
	s.number++
	file := filepath.Join(s.scratch, fmt.Sprint("command", s.number))
	if err := os.WriteFile(file, []byte(script+"\n"), 0o600); err != nil {
		return nil, err
	}
	c := &command{}
	input := file + ".in"
	if interactive {
		if err := syscall.Mkfifo(input, 0o600); err != nil {
			return nil, err
		}
		// Open the pipe for reading and writing, so that neither side blocks or gets EOF.
		fifo, err := os.OpenFile(input, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		c.input = fifo
	} else if err := os.Symlink(os.DevNull, input); err != nil {
		return nil, err
	}
	_, err := fmt.Fprintln(s.process.commands, file)
	return c, err
}

// start starts a shell and restores the state of the last shell.
func (s *Shell) start() error {
	p, err := s.startLeader()
	if err != nil {
		return fmt.Errorf("start the shell: %w", err)
	}
	s.process, s.background = p, nil
	for i, script := range []string{":", s.state} {
		if _, err := s.submit(script, false); err != nil {
			return err
		}
		select {
		case end := <-p.completions:
			if end.exited {
				s.process = nil
				return errors.New("the shell exits immediately after its start")
			}
			now := readState(end.state)
			s.cwd = now["cd"]
			if i == 0 {
				p.initial = now
			}
		case <-time.After(10 * time.Second):
			return errors.New("the shell did not become ready within 10 seconds")
		}
	}
	p.output.take(false)
	return nil
}

// startLeader starts a shell process, unless the Shell is closed. It holds mu, so that Close kills
// every process that startLeader starts.
func (s *Shell) startLeader() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the session is closed")
	}
	s.started = true
	p, err := startProcess(s.program, s.loop(), s.dir, markerVariable+"="+s.session)
	if err == nil {
		s.leaders = append(s.leaders, p.pid())
	}
	return p, err
}

// loop returns the script that the shell runs. The script reads file names from descriptor 3, and
// runs the command in each file. After each command, the script turns off shell options that would
// break the loop, and writes the command's status and the shell's state to descriptor 4. Commands
// do not inherit these descriptors.
func (s *Shell) loop() string {
	state := bashState
	if !s.bash {
		state = shState
	}
	return state + `
exec 5>&1
while IFS= read -r __parley_f <&3; do
  . "$__parley_f" <"$__parley_f.in" >&5 2>&5 3<&- 4>&- 5>&-
  __parley_s=$?
  set +eux
  printf '%s' "$__parley_end" >&5
  { printf 'status\n%s' "$__parley_s"; __parley_state; printf '\034'; } >&4 2>/dev/null
done`
}

func (s *Shell) wait(ctx context.Context, timeout time.Duration) (end completion, done bool) {
	timer, progress := time.NewTimer(timeout), time.NewTicker(progressInterval)
	defer timer.Stop()
	defer progress.Stop()
	for {
		select {
		case end = <-s.process.completions:
			s.finish(end)
			return end, true
		case <-progress.C:
			if text, grown := s.process.output.end(); grown && text != "" && s.Progress != nil {
				s.Progress(text)
			}
		case <-timer.C:
			return completion{}, false
		case <-ctx.Done():
			return completion{}, false
		}
	}
}

func (s *Shell) finish(end completion) {
	if s.running != nil && s.running.input != nil {
		_ = s.running.input.Close()
	}
	s.running = nil
	if end.exited {
		s.process = nil
		return
	}
	now := readState(end.state)
	s.cwd = now["cd"]
	if state := restoreScript(s.process.initial, now); len(state) <= maxState {
		s.state = state
	}
	s.background = map[int]bool{}
	for _, pid := range inSession(s.process.pid()) {
		s.background[pid] = pid != s.process.pid()
	}
}

// interrupt acts like Ctrl-C: it signals the command and its shell, but no background processes.
func (s *Shell) interrupt() { s.signal(syscall.SIGINT) }

func (s *Shell) signal(sig syscall.Signal) {
	leader := s.process.pid()
	for _, pid := range shellFirst(leader, inSession(leader)) {
		if !s.background[pid] {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// shellFirst moves the shell to the beginning of the processes. Otherwise, a shell that sees its
// command die before it gets a signal would run the next command.
func shellFirst(leader int, pids []int) []int {
	if i := slices.Index(pids, leader); i > 0 {
		return slices.Insert(slices.Delete(pids, i, i+1), 0, leader)
	}
	return pids
}

// stop interrupts the running command, and kills it if it does not end.
func (s *Shell) stop() {
	s.interrupt()
	if _, done := s.wait(context.Background(), graceAfterInterrupt); done {
		return
	}
	s.signal(syscall.SIGKILL)
	s.wait(context.Background(), graceAfterInterrupt)
	s.finish(completion{exited: true})
}

// checkSyntax rejects a script with a syntax error, because a shell other than bash would exit on
// the error.
func (s *Shell) checkSyntax(script string) error {
	if s.bash {
		return nil
	}
	check := exec.Command(s.program, "-n")
	check.Stdin = strings.NewReader(script + "\n")
	if out, err := check.CombinedOutput(); err != nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}
