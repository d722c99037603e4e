// Command demo runs one session in the cluster of `make run`. It serves a repository, sends the
// agent a message, and prints the events and the agent's pull request. The git host is a stub.
// Without MODEL, a scripted stub replaces the model.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const message = `greet.sh says hello to nobody. Make it greet its first argument, so that "sh test.sh" passes. ` +
	`Commit the change to a new branch "demo" and open a pull request.`

type options struct {
	state, facade, namespace string
	model, key, baseURL      string
	timeout                  time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.state, "state-dir", ".local", "state directory of `make run`")
	flag.StringVar(&o.facade, "facade", "http://127.0.0.1:3000", "address of the facade")
	flag.StringVar(&o.namespace, "namespace", "default", "namespace of the demo's user")
	flag.StringVar(&o.model, "model", "", "model, as provider/model; without one a scripted model answers")
	flag.StringVar(&o.baseURL, "base-url", "", "base URL of the model's API, if it is not the provider's default")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "time limit for the whole demo")
	flag.Parse()
	o.key = os.Getenv("KEY") // not a flag, because every user of this machine can read arguments
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if err := findFacade(ctx, o.facade); err != nil {
		return err
	}
	scripted := o.model == ""
	if scripted {
		address, err := serveScript()
		if err != nil {
			return err
		}
		fmt.Println("MODEL is not set: a scripted stub answers in place of a real model.")
		o.model, o.key, o.baseURL = "scripted/model", "a-key-for-nothing", address
	}
	dir, err := filepath.Abs(filepath.Join(o.state, "demo"))
	if err != nil {
		return err
	}
	root, err := makeRepository(ctx, dir)
	if err != nil {
		return err
	}
	host, err := serveGitHost(ctx, root)
	if err != nil {
		return err
	}
	fmt.Printf("A stub of a git host, with Gitea's API, serves the repository %s\n", host.url())
	user, err := newUser(ctx, o)
	if err != nil {
		return err
	}
	if err := user.storeSettings(ctx, host); err != nil {
		return err
	}
	fmt.Printf("\n> %s\n\n", message)
	id, err := user.startConversation(ctx, host)
	if err != nil {
		return err
	}
	fmt.Printf("POST /api/conversations: %s\n", id)
	if err := user.waitRunning(ctx, id); err != nil {
		return err
	}
	state, err := user.follow(ctx, id)
	if err != nil {
		return err
	}
	if state == "error" {
		return errors.New("the agent ended with an error in conversation " + id)
	}
	pull, link, exists := host.last()
	if !exists {
		return errors.New("the agent opened no pull request in conversation " + id)
	}
	if err := showPullRequest(ctx, host, pull, link); err != nil {
		return err
	}
	fmt.Print(farewell(o, scripted))
	return nil
}

// farewell returns the demo's last text, which names the command that opens the conversation.
func farewell(o options, scripted bool) string {
	text := fmt.Sprintf("\nThe conversation still exists. To open its page:\n"+
		"  KUBECONFIG=%s PARLEY_FACADE=%s bin/kubectl-parley open --settings %s -n %s\n",
		filepath.Join(o.state, "kubeconfig"), o.facade, userName, o.namespace)
	if scripted {
		return text + "The git host and the scripted model end with this demo, so the agent cannot answer further messages.\n"
	}
	return text + "The git host ends with this demo, so the agent cannot push further changes.\n"
}
