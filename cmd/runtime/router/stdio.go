package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

const (
	// stopGrace is how long a server may take to exit after SIGTERM.
	stopGrace = 5 * time.Second
	// writeTimeout is how long a server may leave its input unread.
	writeTimeout = 30 * time.Second
)

// stdio runs a server as a child process and uses its standard input and output.
func (r *Router) stdio(server session.StdioServer) dialer {
	return func(context.Context) (*link, error) {
		env := append([]string{}, r.options.Env...)
		for _, v := range server.Env {
			value := v.Value
			if v.ValueFile != "" {
				value = r.options.Value(v.ValueFile)
			}
			env = append(env, v.Name+"="+value)
		}
		cmd := process.Command(r.options.Dir, env, server.Command, server.Args...)
		r.options.Confine(cmd)
		stderr := r.options.Output(server.Name)
		cmd.Stderr = stderr
		child, input, output, err := startPiped(cmd, stderr)
		if err != nil {
			return nil, fmt.Errorf("cannot be started: %w", err)
		}
		return &link{
			transport: &mcp.IOTransport{Reader: output, Writer: deadlineWriter{input}},
			ended:     child.Ended,
			reason:    func() error { return fmt.Errorf("ended: %s", cmd.ProcessState) },
			cut: func() {
				_ = input.Close()
				child.Stop(stopGrace)
			},
		}, nil
	}
}

// startPiped starts a child with pipes from os.Pipe, because the pipes of os/exec have no
// deadlines.
func startPiped(cmd *exec.Cmd, stderr io.Closer) (child *process.Child, input, output *os.File, err error) {
	childIn, input, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	output, childOut, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, errors.Join(err, childIn.Close(), input.Close())
	}
	cmd.Stdin, cmd.Stdout = childIn, childOut
	child, err = process.Start(cmd, func(ended *process.Child) {
		ended.Kill() // otherwise, child processes of the server could keep its output open
		_ = stderr.Close()
	})
	_, _ = childIn.Close(), childOut.Close()
	if err != nil {
		_, _ = input.Close(), output.Close()
	}
	return child, input, output, err
}

// deadlineWriter is a pipe to a server. A write fails if the server does not read its input in
// time. Otherwise, it would block forever.
type deadlineWriter struct{ *os.File }

func (w deadlineWriter) Write(data []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.File.Write(data)
}
