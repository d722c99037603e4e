// Command runtime is the first process of a session's pod. It prepares the workspace, serves the tools, runs the
// agent, and says why the session ended.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // an image without certificate authorities, as Parley's own, could reach no server

	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const usage = `usage: runtime                  run the session
       runtime install DIR      copy this program into DIR
       runtime git-credential   answer git, which asks for the session's token`

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
		return supervise()
	case len(args) == 1 && args[0] == runCommand:
		return runSession()
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

// runSession runs the session until it ends or is told to stop. Status 0 means that it ended of its own accord.
func runSession() (code int, err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	env := readEnvironment()
	doc, err := readDocument(env.sessionDir)
	if err != nil {
		return 1, err
	}
	store, err := secrets.Load(env.sessionDir, doc)
	if err != nil {
		return 1, err
	}
	return newRun(env, doc, store, os.Stdout).until(stop)
}

// gitCredential answers git. Of what git can ask, only get has an answer: nothing is to be stored.
func gitCredential(operation string) error {
	if operation != "get" {
		return nil
	}
	env := readEnvironment()
	doc, err := readDocument(env.sessionDir)
	if err != nil || doc.Repository == nil || doc.Repository.TokenFile == "" {
		return err
	}
	store, err := secrets.Load(env.sessionDir, doc)
	if err != nil {
		return err
	}
	remote, err := workspace.Locate(doc.Repository)
	if err != nil {
		return err
	}
	return workspace.Credential(remote, store.Key(doc.Repository.TokenFile), os.Stdin, os.Stdout)
}
