package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoShell says that commands cannot be run here.
var ErrNoShell = errors.New("this image has no shell: neither bash nor sh is in its PATH. The agent needs one to " +
	"work; choose an image that has a shell")

const (
	defaultTimeout = 120 * time.Second
	// graceAfterInterrupt is how long a command may take to end after ctrl-c, before it is killed
	// where that is wanted.
	graceAfterInterrupt = 2 * time.Second
	// marker is in the environment of all that the shell starts, so that what a killed agent left
	// can be found.
	markerVariable = "PARLEY_AGENT_SESSION"
)

// Shell is a shell that lives as long as the session: directory, variables and functions stay from
// call to call. Where a command ends the shell, or is interrupted, a new one takes over in the
// state after the last command that came to an end.
type Shell struct {
	program string
	bash    bool
	dir     string
	session string
	scratch string

	process *process
	// state is a script that brings a new shell to where the last one was.
	state string
	// running is set while a command outlives the call that began it.
	running *command
	// background are the processes that commands left running on purpose.
	background map[int]bool
	number     int

	// leaders are the shells that were started. Close reads them while a command may be running.
	mu      sync.Mutex
	leaders []int
}

// command is one that was given to the shell.
type command struct {
	input *os.File
}

// ended is how a command ended.
type ended struct {
	status int
	// state is what the shell told of itself; empty if the shell is gone.
	state string
	// gone says that the shell ended with the command.
	gone bool
}

// NewShell finds a shell. It is started with the first command.
func NewShell(dir, session, state string) (*Shell, error) {
	s := &Shell{dir: dir, session: session, state: state}
	var err error
	if s.program, err = exec.LookPath("bash"); err == nil {
		s.bash = true
	} else if s.program, err = exec.LookPath("sh"); err != nil {
		return nil, ErrNoShell
	}
	if s.scratch, err = os.MkdirTemp("", "parley-agent-"); err != nil {
		return nil, fmt.Errorf("a directory for the shell: %w", err)
	}
	s.killLeftovers()
	return s, nil
}

// killLeftovers ends what an agent that was killed left running. A command of it would otherwise go
// on unseen.
func (s *Shell) killLeftovers() {
	for _, pid := range marked(markerVariable + "=" + s.session) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Close kills all that the session started.
func (s *Shell) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, leader := range s.leaders {
		for _, pid := range inSession(leader) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	s.killLeftovers()
	_ = os.RemoveAll(s.scratch)
}

// begin gives the shell a command.
func (s *Shell) begin(script string, interactive bool) (*command, error) {
	if s.process != nil {
		select {
		case <-s.process.ends: // it died while it had nothing to do
			s.process = nil
		default:
		}
	}
	if s.process == nil {
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	return s.order(script, interactive)
}

func (s *Shell) order(script string, interactive bool) (*command, error) {
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
		// Open for both, so that neither side waits for the other or sees its end.
		fifo, err := os.OpenFile(input, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		c.input = fifo
	} else if err := os.Symlink(os.DevNull, input); err != nil {
		return nil, err
	}
	_, err := fmt.Fprintln(s.process.orders, file)
	return c, err
}

// start starts a shell and brings it into the state of the last one.
func (s *Shell) start() error {
	p, err := startProcess(s.program, s.loop(), s.dir, markerVariable+"="+s.session)
	if err != nil {
		return fmt.Errorf("the shell: %w", err)
	}
	s.process, s.background = p, nil
	s.mu.Lock()
	s.leaders = append(s.leaders, p.pid())
	s.mu.Unlock()
	for i, script := range []string{":", s.state} {
		if _, err := s.order(script, false); err != nil {
			return err
		}
		select {
		case end := <-p.ends:
			if end.gone {
				s.process = nil
				return errors.New("the shell ends as soon as it is started")
			}
			if i == 0 {
				p.initial = readState(end.state)
			}
		case <-time.After(10 * time.Second):
			return errors.New("the shell does not answer")
		}
	}
	p.output.take(false)
	return nil
}

// loop is what the shell itself runs: it takes commands by file, one after the other, and says
// after each how it ended and what the shell's state is. The command sees neither of those
// descriptors. Options that would hurt this loop hold for one command only.
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

// wait waits for the running command to end, for at most the given time.
func (s *Shell) wait(ctx context.Context, timeout time.Duration) (end ended, done bool) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case end = <-s.process.ends:
		s.settle(end)
		return end, true
	case <-timer.C:
		return ended{}, false
	case <-ctx.Done():
		return ended{}, false
	}
}

// settle notes the state in which a command left the shell.
func (s *Shell) settle(end ended) {
	if s.running != nil && s.running.input != nil {
		_ = s.running.input.Close()
	}
	s.running = nil
	if end.gone {
		s.process = nil
		return
	}
	if state := restoreScript(s.process.initial, readState(end.state)); len(state) <= maxState {
		s.state = state
	}
	s.background = map[int]bool{}
	for _, pid := range inSession(s.process.pid()) {
		s.background[pid] = pid != s.process.pid()
	}
}

// interrupt does what ctrl-c does: it signals the command and the shell that runs it, not what was
// left in the background.
func (s *Shell) interrupt() { s.signal(syscall.SIGINT) }

func (s *Shell) signal(sig syscall.Signal) {
	for _, pid := range inSession(s.process.pid()) {
		if !s.background[pid] {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// stop ends the running command, if need be by force.
func (s *Shell) stop() {
	s.interrupt()
	if _, done := s.wait(context.Background(), graceAfterInterrupt); done {
		return
	}
	s.signal(syscall.SIGKILL)
	s.wait(context.Background(), graceAfterInterrupt)
	s.settle(ended{gone: true})
}

// checkSyntax is for shells that die of a syntax error in what they are told to run.
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
