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

// outputGrace is the time in which processes can still write output after the shell has exited.
const outputGrace = 100 * time.Millisecond

// promptDelay is the time without output after which a command seems to wait for input.
const promptDelay = 100 * time.Millisecond

type process struct {
	cmd         *exec.Cmd
	commands    *os.File
	output      *output
	completions chan completion
	// initial is the state of the shell after its start.
	initial map[string]string
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// startProcess starts a shell with pipes for commands (descriptor 3) and for completions
// (descriptor 4). The shell leads a kernel session, so that all its processes can be found. The
// kernel kills the shell when the agent dies.
func startProcess(program, loop, dir, marker string) (*process, error) {
	commandsIn, commands, commandsErr := os.Pipe()
	answers, answersOut, answersErr := os.Pipe()
	outputIn, outputOut, outputErr := os.Pipe()
	if err := errors.Join(commandsErr, answersErr, outputErr); err != nil {
		return nil, err
	}
	end := "\x1d" + rand.Text() + "\x1d"
	args := []string{"-c", "__parley_end='" + end + "'\n" + loop}
	if filepath.Base(program) == "bash" {
		args = append([]string{"--noprofile", "--norc"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, outputOut, outputOut
	cmd.ExtraFiles = []*os.File{commandsIn, answersOut}
	cmd.Env = append(environment(), marker)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	err := cmd.Start()
	for _, file := range []*os.File{commandsIn, answersOut, outputOut} {
		_ = file.Close()
	}
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, commands: commands, output: newOutput(end), completions: make(chan completion, 1)}
	go p.output.read(outputIn)
	go p.follow(answers, outputIn)
	return p, nil
}

// environment returns the environment of commands. It lacks the model's key, and replaces pagers
// and editors, which would wait for input at a terminal.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"LLM_API_KEY", "BASH_ENV", "ENV", "PAGER", "GIT_PAGER", "TERM", markerVariable}, name)
	})
	return append(env, "PAGER=cat", "GIT_PAGER=cat", "TERM=dumb", "GIT_TERMINAL_PROMPT=0", "GIT_EDITOR=true")
}

// follow reads the completions of commands until the shell exits.
func (p *process) follow(answers, output *os.File) {
	reader := bufio.NewReader(answers)
	for {
		answer, err := reader.ReadString('\034')
		if err != nil {
			break
		}
		status, state, _ := strings.Cut(strings.TrimSuffix(answer, "\034"), "\036")
		code, _ := strconv.Atoi(strings.TrimPrefix(status, "status\n"))
		<-p.output.ended
		p.completions <- completion{status: code, state: state}
	}
	_ = answers.Close()
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState.ExitCode()
	if signal, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && signal.Signaled() {
		status = 128 + int(signal.Signal())
	}
	_ = p.commands.Close()
	p.output.awaitRest(output)
	p.completions <- completion{status: status, exited: true}
}

// output collects the output of commands. The shell prints a mark after each command.
type output struct {
	mark  []byte
	ended chan struct{}
	// drained tells awaitRest that the reader has read the output that was left in the pipe.
	drained chan struct{}

	mu         sync.Mutex
	held       []byte
	cut        *cutter
	remainder  int       // the size of the output that the last take() kept for the next take()
	lastOutput time.Time // when the last output arrived
	reported   time.Time // the value of lastOutput at the last call of end()
	closed     chan struct{}
}

func newOutput(mark string) *output {
	return &output{mark: []byte(mark), ended: make(chan struct{}, 2), drained: make(chan struct{}, 1),
		cut: newCutter(maxOutput), closed: make(chan struct{})}
}

func (o *output) read(from *os.File) {
	defer close(o.closed)
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

// drain reads only the current content of the pipe, because background processes may write for
// ever.
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
		o.lastOutput = time.Now()
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
		default: // no command waits for this mark: the shell exited after printing it
		}
	}
	// Keep the last bytes in o.held if they may be the beginning of a mark.
	if at := bytes.LastIndexByte(o.held, o.mark[0]); at < 0 || len(o.held)-at >= len(o.mark) {
		o.cut.write(o.held)
		o.held = o.held[:0]
	} else {
		o.cut.write(o.held[:at])
		o.held = append([]byte(nil), o.held[at:]...)
	}
}

// awaitRest waits for the last output after the shell has exited. Processes that were interrupted
// together with the shell may still write, so awaitRest waits for the end of the pipe. It waits at
// most outputGrace, because a background process may hold the pipe open for ever. Then it waits
// until the reader has read the remaining output.
func (o *output) awaitRest(pipe *os.File) {
	select {
	case <-o.closed:
		return
	case <-time.After(outputGrace):
	}
	if pipe.SetReadDeadline(time.Now()) != nil {
		return // the reader has closed the pipe
	}
	select {
	case <-o.closed:
	case <-o.drained:
	}
}

// take returns the output since the last call. It leaves the incomplete last line of a running
// command for the next call, because that line may end within a secret. After promptDelay without
// output, it returns this line too in two cases: the line looks like a prompt, or the last call
// left the same line.
func (o *output) take(running bool) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var rest []byte
	silent, left := time.Since(o.lastOutput) >= promptDelay, o.remainder > 0 && o.cut.size() <= o.remainder
	if whole := silent && (left || o.cut.endsWithPrompt()); running && !whole {
		rest = o.cut.removeLastLine()
	}
	text := o.cut.String()
	o.cut, o.remainder = newCutter(maxOutput), len(rest)
	o.cut.write(rest)
	return text
}

// end returns the last part of the output. It leaves out output that take() has already
// returned. If no output has arrived since the previous call of end, grown is false and the text is
// empty. The text may end with a part of a secret, which the runtime removes.
func (o *output) end() (text string, grown bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lastOutput.Equal(o.reported) {
		return "", false
	}
	o.reported = o.lastOutput
	return o.cut.end(maxProgress), true
}

// inSession lists the processes of a POSIX session (setsid), including its leader.
func inSession(leader int) []int {
	return processes(func(dir string) bool {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			return false
		}
		// The process name may contain parentheses. The fields after the last parenthesis are state,
		// parent, group and session.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		return len(fields) > 3 && fields[3] == strconv.Itoa(leader) && fields[0] != "Z"
	})
}

// withVariable returns the processes whose environment contains this variable with this value
// (NAME=value). It does not read the environments of this process's ancestors, because they may
// contain API keys.
func withVariable(variable string) []int {
	ancestors := ancestorsOf(os.Getpid())
	return processes(func(dir string) bool {
		if slices.Contains(ancestors, filepath.Base(dir)) {
			return false
		}
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		return err == nil && slices.Contains(strings.Split(string(env), "\x00"), variable)
	})
}

func ancestorsOf(pid int) (pids []string) {
	for pid > 1 {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		_, rest, found := strings.Cut(string(status), "\nPPid:")
		if err != nil || !found {
			break
		}
		parent, _, _ := strings.Cut(rest, "\n")
		if pid, err = strconv.Atoi(strings.TrimSpace(parent)); err != nil {
			break
		}
		pids = append(pids, strconv.Itoa(pid))
	}
	return pids
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
