// Command agent is the agent that Parley ships, in the catalogue CodeActAgent: a static program for
// any image that has a shell. It speaks the Agent Client Protocol on standard input and output,
// logs on standard error, and reaches the model by the wire of Anthropic's messages or of OpenAI's
// chat completions.
//
// # Updates
//
// A message of the model is told while it is written, in pieces whose _meta has
// "parley.dev/partial": true. When it is whole, one update tells all of it, with "parley.dev/seq"
// in its _meta; it replaces the pieces. Updates with a number count from 1 without gaps, are on
// disk before they are told, and are told again by session/load exactly as they were. Pieces are
// not kept. If an answer breaks off and is asked for again, its pieces begin anew; those that no
// whole message follows are void.
//
// # Going on after a crash
//
// The memory of a session is in $HOME/.parley-agent. A prompt names its turn in the
// "parley.dev/turn" of its _meta. After session/load or session/resume, a prompt with the name of
// the last turn goes on with it, or tells again how it ended, and does not begin it anew. A command
// that was under way is not run again: the model is told that it was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // an image may have no certificate authorities

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/loop"
)

// keyVariable holds the key of the model. In a session it is a placeholder: the runtime adds the
// real one.
const keyVariable = "LLM_API_KEY"

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err := run(os.Args[1:], os.Stdin, os.Stdout, nil); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "agent:", err)
		}
		os.Exit(1)
	}
}

// run serves a client until it is gone, or the program is told to stop. Synced is for tests; see
// turnlog.Log.
func run(args []string, in io.Reader, out io.Writer, synced func(records int)) error {
	options, err := parse(args)
	if err != nil {
		return err
	}
	options.Synced = synced
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	conn := acp.NewConn(in, out)
	a := &agent{conn: conn, options: options, sessions: map[string]*loop.Session{}}
	defer a.close()
	served := make(chan error, 1)
	go func() { served <- conn.Serve(context.Background(), a) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// parse reads the flags.
func parse(args []string) (loop.Options, error) {
	var options loop.Options
	var settings llm.Settings
	var recording string
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	flags.StringVar(&settings.Name, "model", "", "`provider/model`; anthropic/… is reached by Anthropic's wire, all "+
		"others by OpenAI's; without one no session is opened")
	flags.StringVar(&settings.BaseURL, "base-url", "", "root of the model's endpoint, without /v1; the provider's own "+
		"if empty")
	flags.IntVar(&settings.MaxOutput, "max-output", 0, "largest answer of the model in `tokens`; 0 leaves it to the wire")
	flags.IntVar(&options.ContextWindow, "context-window", 0, "the model's context in `tokens`; 0 is unknown, and taken "+
		"for 128000")
	flags.BoolVar(&options.Condense, "condense", true, "summarise the history when the context is 80% full; otherwise "+
		"the turn ends")
	flags.BoolVar(&options.Confirm, "confirm", false, "ask the user before each action that changes something")
	flags.BoolVar(&options.RateActions, "rate-actions", false, "let the model rate how dangerous each action is")
	flags.StringVar(&recording, "replay", "", "a recorded trajectory, whose actions are done again with the first prompt")
	if err := flags.Parse(args); err != nil {
		return options, err
	}
	if flags.NArg() > 0 {
		return options, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	settings.Key = os.Getenv(keyVariable)
	options.Model = llm.New(settings)
	if options.Home, err = os.UserHomeDir(); err != nil {
		return options, err
	}
	if recording != "" {
		content, err := os.ReadFile(recording)
		if err != nil {
			return options, fmt.Errorf("the recording: %w", err)
		}
		options.Recording, err = loop.ReadRecording(content)
		return options, err
	}
	return options, nil
}
