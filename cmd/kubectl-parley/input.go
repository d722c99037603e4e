package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// maxTypedAhead limits the number of typed lines that wait to be sent.
const maxTypedAhead = 64

type typedLine struct {
	text string
	// question is the ID of the question on the screen when the line was read; noQuestion if there
	// was none.
	question int
	// err is the error that ended the input.
	err error
}

const noQuestion = -1

// settle is the time for which a question must be on a terminal before a line can answer it. If a
// line is complete sooner, the user probably typed it before reading the question.
const settle = time.Second

// readLines reads lines as soon as they are typed, even while an earlier line is being sent. For
// each line it records the question that was on the screen when the line was complete. The line can
// answer only this question.
func (c *chat) readLines() <-chan typedLine {
	lines := make(chan typedLine, maxTypedAhead)
	go func() {
		defer close(lines)
		in := bufio.NewReader(c.In)
		for {
			text, err := in.ReadString('\n')
			line, now := typedLine{text: text, question: noQuestion, err: err}, time.Now()
			c.locked(func() {
				if c.question != nil && !now.Before(c.question.answerable) {
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

// discardTypedAhead drops characters that were typed on a terminal and not read yet, including an
// incomplete line. It reports whether the input is a terminal.
func discardTypedAhead(in io.Reader) bool {
	file, isFile := in.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return false
	}
	flushTerminal(int(file.Fd()))
	return true
}

// isBareAnswer reports whether a line looks like the answer to a question. A line that starts with
// a space is a message.
func isBareAnswer(line string) bool {
	switch strings.ToLower(strings.TrimRight(line, " \t\r\n")) {
	case "y", "yes", "n", "no", "a", "all":
		return true
	}
	return false
}

var errTypedAhead = errors.New("not sent: this line was typed before the question, or less than a second after it; " +
	"to send the line as a message, put a space before it")
