// Command agent is the agent that Parley ships, named CodeActAgent in the catalogue: a static
// program for any image that has a shell. It speaks the Agent Client Protocol (ACP) on standard
// input and output, and logs on standard error. It calls models through Anthropic's messages API or
// OpenAI's chat completions API.
//
// # Updates
//
// The agent streams a message of the model in pieces with "parley.dev/partial": true in their
// _meta. When the message is complete, an update with "parley.dev/seq" in its _meta contains the
// whole message and replaces the pieces. Updates with "parley.dev/seq" are numbered from 1 without
// gaps. They are on disk before they are sent, and session/load sends them again unchanged. Pieces
// are not stored. If an answer is interrupted, the agent requests it again and streams it from its
// start; clients discard pieces without a complete message.
//
// A thought with "parley.dev/notice": true in its _meta is a notice from the agent to its user, not
// reasoning of the model.
//
// # Retries
//
// While the agent waits before it calls the model again, a session_info_update says under
// "parley.dev/retry" in its _meta why the last try failed and when the next try follows. When the
// model responds, an update with null under that key follows. Both updates are marked with
// "parley.dev/partial": true and are not stored.
//
// # Messages during a turn
//
// A notification _parley.dev/steer contains a message of the user for the running turn. In its _meta,
// "parley.dev/turn" is the name of the turn, and "parley.dev/message" is the ID of the message. The
// model gets the message before its next answer. When the message is on disk, the agent sends a
// numbered user_message_chunk with the same ID, and the client may send the next message. If the turn
// ends before the message is on disk, the agent drops the message, and the client sends it as a
// prompt.
//
// # Resuming after a crash
//
// Sessions are stored in $HOME/.parley-agent. A prompt names its turn in the "parley.dev/turn" of
// its _meta. After session/load or session/resume, a prompt with the name of the last turn resumes
// that turn, or returns its result again if it has ended. An interrupted command is not run again;
// its result tells the model that it was interrupted.
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
	"strconv"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // for images without certificate authorities

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/loop"
)

// keyVariable is the environment variable with the model's API key. In a session, it contains a
// placeholder, which the runtime replaces with the real key.
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

// run serves a client until the client disconnects, or until a signal stops the program. Tests
// change the options with the function adjust.
func run(args []string, in io.Reader, out io.Writer, adjust func(*loop.Options)) error {
	options, err := parse(args)
	if err != nil {
		return err
	}
	if adjust != nil {
		adjust(&options)
	}
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

func parse(args []string) (loop.Options, error) {
	var options loop.Options
	var settings llm.Settings
	var recording string
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	flags.StringVar(&settings.Name, "model", "", "`provider/model`; anthropic/… uses Anthropic's API, all others use "+
		"OpenAI's; required to open a session")
	flags.StringVar(&settings.BaseURL, "base-url", "", "base URL of the model's endpoint, without /v1; default: the "+
		"provider's own")
	flags.IntVar(&settings.MaxOutput, "max-output", 0, "maximum `tokens` of an answer; 0 means the API's default")
	flags.StringVar(&settings.Effort, "reasoning-effort", "", "`effort` of the model's reasoning: none, minimal, low, "+
		"medium, high or xhigh; default: the model's own effort")
	flags.Func("temperature", "`temperature` of the model; default: the model's own temperature", func(text string) error {
		value, err := strconv.ParseFloat(text, 64)
		settings.Temperature = &value
		return err
	})
	flags.IntVar(&options.ContextWindow, "context-window", 0, "the model's context window in `tokens`; 0 means unknown: "+
		"the agent then assumes 128000 until the provider reports the window in an error")
	flags.BoolVar(&options.Condense, "condense", true, "summarise the history when the context is 80% full; if false, "+
		"the turn ends")
	flags.BoolVar(&options.Confirm, "confirm", false, "ask the user to confirm each action that changes something")
	flags.BoolVar(&options.RateActions, "rate-actions", false, "the model rates the risk of each action")
	flags.StringVar(&recording, "replay", "", "`file` of a recorded trajectory to replay with the first prompt")
	if err := flags.Parse(args); err != nil {
		return options, err
	}
	if flags.NArg() > 0 {
		return options, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	settings.Key = os.Getenv(keyVariable)
	options.Model, options.ModelName = llm.New(settings), settings.Name
	if options.Home, err = os.UserHomeDir(); err != nil {
		return options, err
	}
	if recording != "" {
		content, err := os.ReadFile(recording)
		if err != nil {
			return options, fmt.Errorf("read the recording: %w", err)
		}
		options.Recording, err = loop.ReadRecording(content)
		return options, err
	}
	return options, nil
}
