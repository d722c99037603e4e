package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// printed is the part of an unfinished text that is on the screen.
type printed struct {
	text string
	// gap is set if a part of the text may be missing on the screen.
	gap bool
}

// next returns the part of a new preview that is not on the screen yet. If the text is long, the
// preview contains only the end of the text. If this end begins with the last lines on the screen,
// next returns the part after these lines. Otherwise, it returns "…" and the whole preview.
func (p *printed) next(longer string) string {
	before := p.text
	p.text = longer
	if rest, continues := strings.CutPrefix(longer, before); continues {
		return rest
	}
	p.gap = true
	for before != "" {
		_, before, _ = strings.Cut(before, "\n")
		if rest, continues := strings.CutPrefix(longer, before); continues && before != "" {
			return rest
		}
	}
	return "…\n" + longer
}

// rest returns the part of the finished text that is not on the screen yet. If the screen does not
// show the beginning, the result is the whole text.
func (p *printed) rest(finished string) (rest string, continues bool) {
	rest, continues = strings.CutPrefix(finished, p.text)
	if p.text == "" || p.gap || !continues {
		return finished, false
	}
	return rest, true
}

// preview prints the new parts of the agent's unfinished message and of the output of running
// commands. It prints nothing between a question and its answer.
func (c *chat) preview(p *session.Preview) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.question != nil {
		return
	}
	if p.Message == "" {
		c.endLine()
		c.writing = printed{}
	} else if more := c.writing.next(printable(p.Message)); more != "" {
		fmt.Fprint(c.Out, more)
		c.midLine, c.lastCall = true, ""
	}
	maps.DeleteFunc(c.outputs, func(cause int, _ *printed) bool {
		return !slices.ContainsFunc(p.Outputs, func(output session.CommandOutput) bool { return output.Cause == cause })
	})
	for _, output := range p.Outputs {
		lines := outputLines(output.Content)
		lines = lines[:strings.LastIndexByte(lines, '\n')+1] // the last line is unfinished
		if c.outputs[output.Cause] == nil {
			c.outputs[output.Cause] = &printed{}
		}
		if more := c.outputs[output.Cause].next(lines); more != "" {
			c.endLine()
			c.printOutput(more)
			c.lastCall = ""
		}
	}
}

// outputLines returns the output of a tool call without colours and leading blank lines.
func outputLines(content string) string {
	return strings.TrimLeft(printable(plainOutput(content)), "\n")
}

func (c *chat) printOutput(lines string) {
	fmt.Fprintf(c.Out, "    %s\n", strings.ReplaceAll(strings.TrimRight(lines, "\n"), "\n", "\n    "))
}

// endLine ends the line of an unfinished message.
func (c *chat) endLine() {
	if c.midLine {
		fmt.Fprintln(c.Out)
	}
	c.midLine = false
}

// showMessage prints the part of an agent's message that is not on the screen.
func (c *chat) showMessage(text string) {
	rest, continues := c.writing.rest(text)
	if !continues {
		c.endLine()
	}
	c.midLine, c.writing = false, printed{}
	fmt.Fprintln(c.Out, rest)
}
