// Command demo shows a session at work, with `make run` up: a repository made on the spot, a
// message, the events as they come, and the diff. Without a model of yours a scripted one answers,
// which is a stub and no model.
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

// message is what the agent is asked for.
const message = `greet.sh says hello to nobody. Make it greet its first argument, so that "sh test.sh" passes. ` +
	`Commit the change and push it to the branch "demo" of origin.`

type options struct {
	state, facade, namespace string
	model, key, baseURL      string
	timeout                  time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.state, "state-dir", ".local", "state directory of make run")
	flag.StringVar(&o.facade, "facade", "http://127.0.0.1:3000", "address of the facade")
	flag.StringVar(&o.namespace, "namespace", "default", "namespace of the demo's user")
	flag.StringVar(&o.model, "model", "", "model, as provider/model; without one a scripted model answers")
	flag.StringVar(&o.baseURL, "base-url", "", "address of the model's API, where it is not the provider's own")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long it may take")
	flag.Parse()
	o.key = os.Getenv("KEY") // an argument could be read by everybody
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
		fmt.Println("No MODEL is named: a scripted model answers, which is a stub and no model.")
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
		return errors.New("the agent ended with an error; the conversation is " + id)
	}
	fmt.Println("\nWhat it pushed to the branch demo:")
	if err := showDiff(ctx, repository); err != nil {
		return err
	}
	fmt.Print(farewell(o, scripted))
	return nil
}

// farewell says what is left, and what is not.
func farewell(o options, scripted bool) string {
	text := fmt.Sprintf("\nThe conversation is still there. For its page, once make plugin was run:\n"+
		"  KUBECONFIG=%s PARLEY_FACADE=%s bin/kubectl-parley open --settings %s -n %s\n",
		filepath.Join(o.state, "kubeconfig"), o.facade, userName, o.namespace)
	if scripted {
		text += "The scripted model ends with this demo: the agent has nobody to ask about further messages.\n"
	}
	return text
}
