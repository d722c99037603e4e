// Command runtime is the first process of a session's pod. It prepares the workspace, serves the tools, runs the
// agent, and says why the session ended.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // an image without certificate authorities, as Parley's own, could reach no server
	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const usage = `usage: runtime                  run the session
       runtime install DIR      copy this program into DIR
       runtime git-credential   answer git, which asks for the session's token`

// exitCannotRun is the status of a program that cannot be run, as a shell has it.
const exitCannotRun = 126

// runCommand is how the first process starts the one that does the work.
const runCommand = "run"

func main() {
	code, err := command(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
	}
	os.Exit(code)
}

func command(args []string) (code int, err error) {
	switch {
	case len(args) == 0:
		return guarded(supervise)
	case len(args) == 1 && args[0] == runCommand:
		return guarded(runSession)
	case len(args) >= 3 && args[0] == process.ConfineCommand:
		// The thread that is confined must be the one that becomes the program.
		runtime.LockOSThread()
		return exitCannotRun, process.Become(args[1], args[2:])
	case len(args) == 2 && args[0] == "install":
		err = install(args[1])
	case len(args) == 2 && args[0] == "git-credential":
		err = gitCredential(args[1])
	default:
		fmt.Fprintln(os.Stderr, usage)
		return 2, nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// guarded runs what holds the session's secrets, once no other process of the same user, such as the agent, can look into this
// one: neither at its memory and environment nor at its files. Nothing else of the session's runs before that.
func guarded(run func() (int, error)) (code int, err error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("keep others out of this process: %w", err)
	}
	return run()
}

// runSession runs the session until it ends or is told to stop. Status 0 means that it ended of its own accord.
func runSession() (code int, err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	listener, err := inheritedListener()
	if err != nil {
		return 1, err
	}
	env := readEnvironment()
	doc, err := readDocument(env.sessionDir)
	if err != nil {
		return 1, err
	}
	store, err := secrets.Take(doc)
	if err != nil {
		return 1, err
	}
	return newRun(env, doc, store, os.Stdout).until(stop, listener)
}

// gitCredential answers git. Of what git can ask, only get has an answer: nothing is to be stored. The token is in the
// environment of who runs git.
func gitCredential(operation string) error {
	if operation != "get" {
		return nil
	}
	env := readEnvironment()
	doc, err := readDocument(env.sessionDir)
	if err != nil || doc.Repository == nil || doc.Repository.TokenFile == "" {
		return err
	}
	remote, err := workspace.Locate(doc.Repository)
	if err != nil {
		return err
	}
	return workspace.Credential(remote, os.Getenv(session.TokenVariable(doc.Repository.Provider)), os.Stdin, os.Stdout)
}
