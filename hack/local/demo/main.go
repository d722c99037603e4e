// Command demo runs one session in the cluster of `make run`. It makes a repository, sends the
// agent a message, and prints the events and the diff. Without MODEL, a scripted stub replaces the
// model.
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
	`Commit the change and push it to the branch "demo" of origin.`

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
	o.key = os.Getenv("KEY") // every user of this machine can read arguments
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
	repository, err := makeRepository(ctx, dir)
	if err != nil {
		return err
	}
	user, err := newUser(ctx, o)
	if err != nil {
		return err
	}
	if err := user.storeSettings(ctx); err != nil {
		return err
	}
	fmt.Printf("\n> %s\n\n", message)
	id, err := user.startConversation(ctx, repository)
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
	fmt.Println("\nThe agent pushed this change to the branch demo:")
	if err := showDiff(ctx, repository); err != nil {
		return err
	}
	fmt.Print(farewell(o, scripted))
	return nil
}

// farewell returns the demo's last text, which names the command that opens the conversation.
func farewell(o options, scripted bool) string {
	text := fmt.Sprintf("\nThe conversation still exists. To open its page, run `make plugin` once, then:\n"+
		"  KUBECONFIG=%s PARLEY_FACADE=%s bin/kubectl-parley open --settings %s -n %s\n",
		filepath.Join(o.state, "kubeconfig"), o.facade, userName, o.namespace)
	if scripted {
		text += "The scripted model ends with this demo, so the agent cannot answer further messages.\n"
	}
	return text
}
