package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// printable is a text of a session without what would have a terminal show something else than it
// says: control characters, and those that turn the direction of what comes after them. They are
// replaced, so that one sees that there was something.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n', c == '\t':
			return c
		case unicode.IsControl(c), '\u202a' <= c && c <= '\u202e', '\u2066' <= c && c <= '\u2069':
			return unicode.ReplacementChar
		}
		return c
	}, strings.ReplaceAll(text, "\r\n", "\n"))
}

// isTerminal: somebody reads what is written there.
func isTerminal(out io.Writer) bool {
	file, isFile := out.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// copyLines copies text line by line, each as show makes it.
func copyLines(out io.Writer, in io.Reader, show func(line string) string) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if _, failed := io.WriteString(out, show(line)); failed != nil || errors.Is(err, io.EOF) {
			return failed
		}
		if err != nil {
			return err
		}
	}
}
