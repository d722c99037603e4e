package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/parley-dev/parley/api/session"
)

const (
	logPollInterval   = 100 * time.Millisecond
	execIdleTimeout   = 4 * time.Hour
	execCreateTimeout = 30 * time.Second
)

// serveAPI serves a part of the kubelet API: it returns logs of pods and runs commands in pods.
// Only the API server has access, because the kubelet API can run any command on this machine.
func (n *Node) serveAPI(ctx context.Context, listener net.Listener, config *tls.Config, client string) {
	config = config.Clone()
	config.ClientAuth = tls.RequireAndVerifyClientCert
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.serveLogs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", n.serveExec)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != client {
				http.Error(w, "only the API server has access", http.StatusForbidden)
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(tls.NewListener(listener, config)) }()
}

func (n *Node) runOf(namespace, name string) *podRun {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, run := range n.runs {
		if run.pod.Namespace == namespace && run.pod.Name == name {
			return run
		}
	}
	return nil
}

func (n *Node) logFile(namespace, name string) string {
	return filepath.Join(n.Logs, namespace+"_"+name+".log")
}

// serveLogs sends a pod's log or its last lines. It follows the log if the client requests this.
func (n *Node) serveLogs(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	run := n.runOf(namespace, name)
	if run == nil {
		http.Error(w, "no such pod on this node", http.StatusNotFound)
		return
	}
	file, err := os.Open(n.logFile(namespace, name))
	if err != nil {
		http.Error(w, "the pod has no log yet", http.StatusNotFound)
		return
	}
	defer file.Close()
	if text := r.URL.Query().Get("tailLines"); text != "" {
		lines, err := strconv.Atoi(text)
		if err == nil {
			err = seekTail(file, lines)
		}
		if err != nil {
			http.Error(w, "tailLines: "+err.Error(), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain")
	control := http.NewResponseController(w)
	for follow := r.URL.Query().Get("follow") == "true"; ; {
		over := run.ctx.Err() != nil
		if _, err := io.Copy(w, file); err != nil || control.Flush() != nil || !follow || over {
			return
		}
		select {
		case <-time.After(logPollInterval):
		case <-run.ctx.Done():
		case <-r.Context().Done():
			return
		}
	}
}

func seekTail(file *os.File, lines int) error {
	if lines < 0 {
		return errors.New("must not be negative")
	}
	var starts []int64
	reader, offset := bufio.NewReader(file), int64(0)
	for {
		line, err := reader.ReadString('\n')
		if len(line) > 0 {
			if starts = append(starts, offset); len(starts) > lines {
				starts = starts[1:]
			}
			offset += int64(len(line))
		}
		if err != nil {
			break
		}
	}
	if len(starts) > 0 {
		offset = starts[0]
	}
	_, err := file.Seek(offset, io.SeekStart)
	return err
}

func (n *Node) serveExec(w http.ResponseWriter, r *http.Request) {
	run := n.runOf(r.PathValue("namespace"), r.PathValue("pod"))
	if run == nil {
		http.Error(w, "no such pod on this node", http.StatusNotFound)
		return
	}
	// The request has the parameter names of a kubelet, such as "input". The library expects the
	// names that clients send to the API server, such as "stdin".
	query := r.URL.Query()
	for theirs, ours := range map[string]string{"input": remotecommand.ExecStdinParam,
		"output": remotecommand.ExecStdoutParam, "error": remotecommand.ExecStderrParam, "tty": remotecommand.ExecTTYParam} {
		if query.Get(theirs) == "1" {
			query.Set(ours, "1")
		}
	}
	r.URL.RawQuery = query.Encode()
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, executor{run}, r.PathValue("pod"), string(run.pod.UID), r.PathValue("container"),
		query["command"], options,
		execIdleTimeout, execCreateTimeout, remotecommand.SupportedStreamingProtocols)
}

// executor runs commands for kubectl exec. The commands get the directory and the environment of
// the session's process, but not the session's secrets.
type executor struct{ run *podRun }

func (e executor) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out,
	errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if len(command) == 0 {
		return errors.New("no command given")
	}
	environment, err := e.run.environment()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = e.run.node.localPath(e.run.pod, e.run.pod.Spec.Containers[0].WorkingDir)
	for _, variable := range environment {
		if !strings.HasPrefix(variable, session.SecretVariables) {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	if tty {
		err = runInTerminal(cmd, in, out, resize)
	} else {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errs
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		// A background process may keep the output open after the command has ended. Wait only a
		// second for it.
		cmd.WaitDelay = time.Second
		err = cmd.Run()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: exit, Code: exit.ExitCode()}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return nil
}

func runInTerminal(cmd *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	cmd.Env = append(cmd.Env, "TERM=xterm")
	terminal, err := pty.Start(cmd)
	if err != nil {
		return err
	}
	defer terminal.Close()
	go func() {
		for size := range resize {
			_ = pty.Setsize(terminal, &pty.Winsize{Rows: size.Height, Cols: size.Width})
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(terminal, in) }()
	}
	_, _ = io.Copy(out, terminal) // ends with an error when the process exits
	return cmd.Wait()
}
