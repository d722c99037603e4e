package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// printable replaces control characters and bidirectional overrides, because they could disguise a
// session's text on a terminal. The replacement character shows where they were.
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

// terminalSequences matches terminal sequences: colours and cursor movements, titles and links, and
// short sequences.
var terminalSequences = regexp.MustCompile(
	`\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])`)

// plainOutput removes terminal sequences from the output of a program. It replaces carriage returns
// by line breaks, so that later output does not hide earlier output.
func plainOutput(text string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(terminalSequences.ReplaceAllString(text, ""))
}

func isTerminal(out io.Writer) bool {
	file, isFile := out.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// printer writes the printable form of a stream. It uses constant memory, because a session's log
// may be a single endless line.
type printer struct {
	out io.Writer
	// rest holds the first bytes of a character whose other bytes come with the next write.
	rest string
}

func (p *printer) Write(data []byte) (int, error) {
	text := p.rest + string(data)
	end := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if from := len(text) - i; utf8.RuneStart(text[from]) {
			if !utf8.FullRuneInString(text[from:]) || text[from:] == "\r" {
				end = from
			}
			break
		}
	}
	p.rest = text[end:]
	if _, err := io.WriteString(p.out, printable(text[:end])); err != nil {
		return 0, err
	}
	return len(data), nil
}
