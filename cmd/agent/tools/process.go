package tools

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// afterDeath is how long what was interrupted with a shell may go on saying something.
const afterDeath = 100 * time.Millisecond

// silence is how long a command says nothing before it seems to wait for an answer.
const silence = 100 * time.Millisecond

// process is one shell that is running.
type process struct {
	cmd    *exec.Cmd
	orders *os.File
	output *output
	ends   chan ended
	// initial is the state that the shell started in.
	initial map[string]string
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// startProcess starts a shell with pipes for orders (3) and for its answers (4). It leads a session
// of its own, so that all that it starts can be found, and it dies with the agent.
func startProcess(program, loop, dir, marker string) (*process, error) {
	ordersIn, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, answersOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	said, saidOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	end := "\x1d" + rand.Text() + "\x1d"
	args := []string{"-c", "__parley_end='" + end + "'\n" + loop}
	if filepath.Base(program) == "bash" {
		args = append([]string{"--noprofile", "--norc"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, saidOut, saidOut
	cmd.ExtraFiles = []*os.File{ordersIn, answersOut}
	cmd.Env = append(environment(), marker)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	for _, file := range []*os.File{ordersIn, answersOut, saidOut} {
		_ = file.Close()
	}
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, orders: orders, output: newOutput(end), ends: make(chan ended, 1)}
	go p.output.read(said)
	go p.follow(answers, said)
	return p, nil
}

// environment is that of commands: no key of the model, and no program that waits for somebody at a
// terminal.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"LLM_API_KEY", "BASH_ENV", "ENV", "PAGER", "GIT_PAGER", "TERM", markerVariable}, name)
	})
	return append(env, "PAGER=cat", "GIT_PAGER=cat", "TERM=dumb", "GIT_TERMINAL_PROMPT=0", "GIT_EDITOR=true")
}

// follow reads the shell's answers until it is gone.
func (p *process) follow(answers, said *os.File) {
	reader := bufio.NewReader(answers)
	for {
		answer, err := reader.ReadString('\034')
		if err != nil {
			break
		}
		status, state, _ := strings.Cut(strings.TrimSuffix(answer, "\034"), "\036")
		code, _ := strconv.Atoi(strings.TrimPrefix(status, "status\n"))
		<-p.output.ended
		p.ends <- ended{status: code, state: state}
	}
	_ = answers.Close()
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState.ExitCode()
	if signal, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && signal.Signaled() {
		status = 128 + int(signal.Signal())
	}
	_ = p.orders.Close()
	p.output.settle(said)
	p.ends <- ended{status: status, gone: true}
}

// output collects what commands say, up to the mark that the shell sets after each.
type output struct {
	mark  []byte
	ended chan struct{}
	// drained is told when all is read that was said until settle asked for it.
	drained chan struct{}

	mu    sync.Mutex
	held  []byte
	cut   *cutter
	kept  int       // how much of what was said the last take left
	spoke time.Time // when something was said last
	idle  chan struct{}
}

func newOutput(mark string) *output {
	return &output{mark: []byte(mark), ended: make(chan struct{}, 2), drained: make(chan struct{}, 1),
		cut: newCutter(maxOutput), idle: make(chan struct{})}
}

func (o *output) read(from *os.File) {
	defer close(o.idle)
	defer func() { _ = from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		o.add(buffer[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = o.drain(from, buffer)
			o.drained <- struct{}{}
		}
		if err != nil {
			return
		}
	}
}

// drain reads what is in the pipe now, and no more: others may go on for ever.
func (o *output) drain(from *os.File, buffer []byte) error {
	connection, err := from.SyscallConn()
	if err != nil {
		return err
	}
	left := 0
	if err := connection.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return err
	}
	if err := from.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	for left > 0 {
		n, err := from.Read(buffer[:min(left, len(buffer))])
		o.add(buffer[:n])
		left -= n
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *output) add(piece []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(piece) > 0 {
		o.spoke = time.Now()
	}
	o.held = append(o.held, piece...)
	for {
		at := bytes.Index(o.held, o.mark)
		if at < 0 {
			break
		}
		o.cut.write(o.held[:at])
		o.held = append([]byte(nil), o.held[at+len(o.mark):]...)
		select {
		case o.ended <- struct{}{}:
		default: // a mark that no command waits for: the shell died after it
		}
	}
	// The end of what is held may be the beginning of a mark.
	if at := bytes.LastIndexByte(o.held, o.mark[0]); at < 0 || len(o.held)-at >= len(o.mark) {
		o.cut.write(o.held)
		o.held = o.held[:0]
	} else {
		o.cut.write(o.held[:at])
		o.held = append([]byte(nil), o.held[at:]...)
	}
}

// settle waits until all is read that a shell said that is gone: it is in the pipe already. A
// process in the background may hold the pipe open for long, and what was interrupted with the shell
// has a moment to end.
func (o *output) settle(said *os.File) {
	select {
	case <-o.idle:
		return
	case <-time.After(afterDeath):
	}
	if said.SetReadDeadline(time.Now()) != nil {
		return // the reader has closed it
	}
	select {
	case <-o.idle:
	case <-o.drained:
	}
}

// take returns what was said since the last time. What a running command is in the middle of saying
// is left for the next time, since it may be half of a secret, unless it has fallen silent, and what
// it said looks like a prompt or was left before.
func (o *output) take(running bool) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var rest []byte
	silent, left := time.Since(o.spoke) >= silence, o.kept > 0 && o.cut.size() <= o.kept
	if whole := silent && (left || o.cut.prompts()); running && !whole {
		rest = o.cut.unfinished()
	}
	said := o.cut.String()
	o.cut, o.kept = newCutter(maxOutput), len(rest)
	o.cut.write(rest)
	return said
}

// inSession lists the processes of a session of the kernel, its leader included.
func inSession(leader int) []int {
	return processes(func(dir string) bool {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			return false
		}
		// The name may hold anything, parentheses too; after the last one: state, parent, group,
		// session.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		return len(fields) > 3 && fields[3] == strconv.Itoa(leader) && fields[0] != "Z"
	})
}

// marked lists the processes that have this variable.
func marked(variable string) []int {
	return processes(func(dir string) bool {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		return err == nil && slices.Contains(strings.Split(string(env), "\x00"), variable)
	})
}

func processes(match func(dir string) bool) []int {
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && pid != os.Getpid() && match(filepath.Join("/proc", entry.Name())) {
			found = append(found, pid)
		}
	}
	return found
}
