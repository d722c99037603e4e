// Command runtime runs a session: it prepares the workspace, serves the tools, runs the agent, and
// reports why the session ended.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // for images without certificate authorities, such as Parley's own

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

const usage = `usage: runtime run              run the session, for the supervisor
       runtime install DIR      copy this program, the agent and the supervisor into DIR`

func main() {
	code, err := command(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
	}
	os.Exit(code)
}

func command(args []string) (code int, err error) {
	switch {
	case len(args) == 1 && args[0] == "run":
		return runSession()
	case len(args) == 2 && args[0] == "install":
		err = install(args[1])
	default:
		fmt.Fprintln(os.Stderr, usage)
		return 2, nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// runSession runs the session until it ends or receives a signal. The code is 0 if the session
// ended by itself.
func runSession() (code int, err error) {
	if err := supervise.Guard(); err != nil {
		return 1, err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	listener, err := supervise.Listener()
	if err != nil {
		return 1, err
	}
	env := readEnvironment()
	if env.image, err = supervise.TakeImage(); err != nil {
		return 1, err
	}
	if isWarm() {
		pod, err := newWarmPod(env)
		if err != nil {
			return 1, err
		}
		return pod.runUntil(stop, listener)
	}
	doc, err := readDocument(env.sessionDir, os.Getenv(session.DocumentDigestVariable))
	if err != nil {
		return 1, err
	}
	store, err := secrets.Take(doc)
	if err != nil {
		return 1, err
	}
	s := newRun(env, doc, store, os.Stdout)
	if err := s.serve(listener); err != nil {
		return 1, fmt.Errorf("serve: %w", err)
	}
	return s.runUntil(stop)
}
