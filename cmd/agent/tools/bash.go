package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/parley-dev/parley/cmd/agent/llm"
)

const bashDescription = `Run a command in a persistent shell: its directory, variables and functions stay from call ` +
	`to call; options such as set -e apply to one call.
- The output is cut in the middle beyond 30,000 characters.
- A command that exceeds its timeout keeps running, and the result says so. Then call again with is_input=true: an ` +
	`empty command continues to wait, "C-c" interrupts, any other text is sent to the standard input of the command if ` +
	`it was started with interactive=true.
- Start servers and other long work in the background: command > file.log 2>&1 &`

// maxWords is the maximum number of words of a command that paths() treats as paths.
const maxWords = 64

type bashInput struct {
	Command     string `json:"command"`
	Timeout     number `json:"timeout"`
	Interactive flag   `json:"interactive"`
	IsInput     flag   `json:"is_input"`
}

// The types number and flag also accept strings, because some models and recordings send strings.
// Invalid values are ignored.
type (
	number float64
	flag   bool
)

func (n *number) UnmarshalJSON(data []byte) error {
	_, _ = fmt.Sscan(strings.Trim(string(data), `"`), (*float64)(n)) // ignore an invalid number
	return nil
}

func (f *flag) UnmarshalJSON(data []byte) error {
	*f = strings.Trim(string(data), `"`) == "true"
	return nil
}

type bashOutput struct {
	// ExitCode is absent while the command is running.
	ExitCode    *int   `json:"exit_code,omitempty"`
	Output      string `json:"output"`
	Interrupted bool   `json:"interrupted"`
	Running     bool   `json:"running,omitempty"`
}

func (s *Shell) tool() *Tool {
	return &Tool{
		Tool: llm.Tool{Name: BashName, Description: bashDescription, Schema: schema([]any{"command"}, map[string]any{
			"command": text("The command, or the input for the running command."),
			"timeout": map[string]any{"type": "number", "description": "Seconds to wait for the command. Default: 120."},
			"interactive": map[string]any{"type": "boolean", "description": "Keep the command's standard input open, so that " +
				"calls with is_input=true can write to it. Otherwise, the standard input is empty."},
			"is_input": map[string]any{"type": "boolean", "description": "Send the text in command as input to the command " +
				"that is still running."},
		})},
		describe: func(input json.RawMessage) Description {
			var in bashInput
			_ = json.Unmarshal(input, &in) // invalid input has no title
			// Do not truncate the title here: the runtime truncates it after it has masked secrets.
			title, _, more := strings.Cut(strings.TrimSpace(in.Command), "\n")
			if more {
				title += " …"
			}
			if title == "" {
				title = BashName
			}
			return Description{Title: title, Kind: kindExecute, Acts: true}
		},
		run: s.run,
	}
}

func (s *Shell) run(ctx context.Context, input json.RawMessage) Outcome {
	var in bashInput
	if err := json.Unmarshal(input, &in); err != nil {
		return failed("command must be a text")
	}
	timeout := defaultTimeout
	if in.Timeout > 0 {
		timeout = time.Duration(float64(in.Timeout) * float64(time.Second))
	}
	before := s.state
	var refused *Outcome
	if in.IsInput || s.running != nil {
		refused = s.sendInput(in)
	} else {
		refused = s.startCommand(in)
	}
	if refused != nil {
		return *refused
	}
	used := paths(in.Command, s.cwd)
	outcome := s.await(ctx, timeout)
	outcome.Paths = append(used, s.cwd)
	if s.state != before {
		outcome.Shell = s.state
	}
	return outcome
}

// await waits until the running command ends or the timeout has passed. It returns the output so
// far, and the exit code if the command has ended. If ctx ends, await stops the command.
func (s *Shell) await(ctx context.Context, timeout time.Duration) Outcome {
	process := s.process
	end, done := s.wait(ctx, timeout)
	if !done && ctx.Err() != nil {
		s.stop()
		outcome := s.report(process, "\n[The command was interrupted.]", bashOutput{Interrupted: true})
		outcome.IsError = true
		return outcome
	}
	if !done {
		note := fmt.Sprintf("\n[The command is still running after %v. Call again with is_input=true: an empty "+
			"command continues to wait, C-c interrupts.]", timeout)
		outcome := s.report(process, note, bashOutput{Running: true})
		outcome.Waiting = true
		return outcome
	}
	note := fmt.Sprintf("\n[exit code %d]", end.status)
	if end.exited {
		note += "\n[This command ended the shell. A new shell continues with the state from before the command.]"
	}
	outcome := s.report(process, note, bashOutput{ExitCode: &end.status, Interrupted: end.exited && end.status == 130})
	outcome.IsError = end.status != 0
	return outcome
}

// paths guesses the paths that a command uses. It resolves the first maxWords words of the command
// against dir, although most words are not paths.
func paths(command, dir string) []string {
	words := strings.FieldsFunc(command, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("\"'`;&|<>(){}=$,:", r)
	})
	list := make([]string, 0, maxWords+1)
	for _, word := range words[:min(len(words), maxWords)] {
		if !filepath.IsAbs(word) {
			word = filepath.Join(dir, word)
		}
		list = append(list, filepath.Clean(word))
	}
	return list
}

// startCommand starts a command. It returns nil, or the outcome of a command that could not start.
func (s *Shell) startCommand(in bashInput) *Outcome {
	if strings.TrimSpace(in.Command) == "" {
		return new(failed("command is empty, and no command is running."))
	}
	if err := s.checkSyntax(in.Command); err != nil {
		return &Outcome{Text: err.Error() + "\n[exit code 2]", IsError: true,
			Raw: bashOutput{ExitCode: new(2), Output: err.Error()}}
	}
	running, err := s.begin(in.Command, bool(in.Interactive))
	if err != nil {
		return new(failed("The command could not be started: %v", err))
	}
	s.running = running
	return nil
}

// sendInput sends input to the running command. It returns nil, or the outcome if it could not send
// the input.
func (s *Shell) sendInput(in bashInput) *Outcome {
	switch {
	case s.running == nil:
		return new(failed("No command is running, so there is none to send input to."))
	case !bool(in.IsInput) && in.Command != "":
		return new(failed("A command is still running, so this call was not executed. Call with is_input=true: an empty " +
			"command continues to wait, C-c interrupts."))
	case in.Command == "C-c":
		s.interrupt()
	case in.Command == "":
	case s.running.input == nil:
		return new(failed("The running command was not started with interactive=true, so it accepts only C-c."))
	default:
		if _, err := fmt.Fprintln(s.running.input, in.Command); err != nil {
			return new(failed("The input could not be sent: %v", err))
		}
	}
	return nil
}

func (s *Shell) report(p *process, note string, raw bashOutput) Outcome {
	raw.Output = p.output.take(s.running != nil)
	return Outcome{Text: strings.TrimPrefix(strings.TrimRight(raw.Output, "\n")+note, "\n"), Raw: raw}
}
