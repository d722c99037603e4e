package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// maxTypedAhead limits the lines that wait to be sent.
const maxTypedAhead = 64

// typedLine is a line of the input.
type typedLine struct {
	text string
	// question is the ID of the question on the screen when the line was read; noQuestion if there was
	// none.
	question int
	// err ends the input.
	err error
}

const noQuestion = -1

// readLines reads lines as soon as they are typed, even while an earlier line is being sent. It
// records the question on the screen, because a line answers only a question that the user has
// seen.
func (c *chat) readLines() <-chan typedLine {
	lines := make(chan typedLine, maxTypedAhead)
	go func() {
		defer close(lines)
		in := bufio.NewReader(c.In)
		for {
			text, err := in.ReadString('\n')
			line := typedLine{text: text, question: noQuestion, err: err}
			c.locked(func() {
				if c.question != nil {
					line.question = c.question.id
				}
			})
			lines <- line
			if err != nil {
				return
			}
		}
	}()
	return lines
}

// discardTypedAhead drops the keys that were typed on a terminal and not yet read, also a line that
// is not complete.
func discardTypedAhead(in io.Reader) {
	if file, isFile := in.(*os.File); isFile && term.IsTerminal(int(file.Fd())) {
		flushTerminal(int(file.Fd()))
	}
}

// isBareAnswer reports whether a line looks like the answer to a question. With a space before it,
// the line is a message.
func isBareAnswer(line string) bool {
	switch strings.ToLower(strings.TrimRight(line, " \t\r\n")) {
	case "y", "yes", "n", "no", "a", "all":
		return true
	}
	return false
}

var errTypedAhead = errors.New("not sent: this line was typed before the question was shown; to send it as a " +
	"message, put a space before it")
