package tools

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxOutput limits a tool's output for the model, in characters.
const maxOutput = 30_000

// maxProgress is the maximum size, in characters, of the output that is reported while a command
// runs.
const maxProgress = 12 << 10

// maxSecret is a length in characters. A cut within a line could leave a part of a secret, so the
// cutter removes the whole line if it is not longer than maxSecret. A JSON account key on one line
// is shorter.
const maxSecret = 4 << 10

// cutter keeps the beginning and the end of a text, and counts the characters dropped between them.
type cutter struct {
	half       int
	head, tail []byte
	dropped    int
}

func newCutter(limit int) *cutter { return &cutter{half: limit / 2} }

func (c *cutter) write(piece []byte) {
	if room := c.half - len(c.head); room > 0 {
		n := min(room, len(piece))
		c.head = append(c.head, piece[:n]...)
		piece = piece[n:]
	}
	c.tail = append(c.tail, piece...)
	// drop() copies the tail, so call it rarely.
	if len(c.tail) > 4*c.half {
		c.drop()
	}
}

func (c *cutter) drop() {
	if over := len(c.tail) - c.half; over > 0 {
		c.dropped += over
		c.tail = append([]byte(nil), c.tail[over:]...)
	}
}

func (c *cutter) String() string {
	c.drop()
	if c.dropped == 0 {
		return strings.ToValidUTF8(string(c.head)+string(c.tail), "\uFFFD")
	}
	last := len(c.head) - 1
	head := c.head[:len(c.head)-dropAtCut(maxDrop(len(c.head)), func(i int) byte { return c.head[last-i] })]
	tail := c.tail[dropAtCut(maxDrop(len(c.tail)), func(i int) byte { return c.tail[i] }):]
	left := c.dropped + len(c.head) - len(head) + len(c.tail) - len(tail)
	return fmt.Sprintf("%s\n[… %d characters were left out here …]\n%s", trimRunes(head), left, trimRunes(tail))
}

// maxDrop returns the number of characters that a cut may drop from a text of this size.
func maxDrop(size int) int { return min(size, max(size/4, maxSecret)) }

// dropAtCut returns the number of characters to drop next to a cut: the rest of the line or, if the
// line is longer than limit, the rest of the word. If a part of a secret remained, the runtime
// could not recognise and mask it.
func dropAtCut(limit int, at func(i int) byte) int {
	for _, separators := range []string{"\r\n", " \t\r\n", " \t\r\n\"'`,;:&|<>(){}[]"} {
		for i := range limit {
			if strings.IndexByte(separators, at(i)) >= 0 {
				return i
			}
		}
	}
	return limit
}

func (c *cutter) size() int { return len(c.head) + c.dropped + len(c.tail) }

// prompt matches the end of a prompt in a terminal, such as "$ " or "Password:". A text that ends
// with a prompt rarely ends within a secret.
var prompt = regexp.MustCompile(`([:?>$#%)\]] |[\pL)\]][:?])$`)

func (c *cutter) endsWithPrompt() bool {
	last := c.head
	if len(c.tail) > 0 {
		last = c.tail
	}
	return prompt.Match(last[max(0, len(last)-2*utf8.UTFMax):])
}

// removeLastLine removes and returns the incomplete last line, or the last word if that line is
// long.
func (c *cutter) removeLastLine() []byte {
	text := c.tail
	if c.dropped == 0 {
		text = append(bytes.Clone(c.head), c.tail...)
	}
	size := len(text)
	n := min(size, dropAtCut(min(size+1, maxSecret), func(i int) byte {
		if i == size {
			return '\n' // the start of the text is the start of a line
		}
		return text[size-1-i]
	}))
	for n < size && n > 0 && !utf8.RuneStart(text[size-n]) {
		n++
	}
	fromTail := min(n, len(c.tail))
	c.tail = c.tail[:len(c.tail)-fromTail]
	c.head = c.head[:len(c.head)-(n-fromTail)]
	return text[size-n:]
}

// end returns the end of the text, at most limit characters. limit must be less than half of the
// cutter's own limit.
func (c *cutter) end(limit int) string {
	text := c.tail
	if c.dropped == 0 {
		text = slices.Concat(c.head, c.tail)
	}
	if len(text) > limit {
		text = text[len(text)-limit:]
		text = text[dropAtCut(maxDrop(limit), func(i int) byte { return text[i] }):]
	}
	return trimRunes(text)
}

// trimRunes removes the incomplete characters that a cut left at the ends of a text.
func trimRunes(text []byte) string {
	return strings.Trim(strings.ToValidUTF8(string(text), "\uFFFD"), "\uFFFD")
}

// Cut shortens a text to about limit characters: it drops the middle.
func Cut(text string, limit int) string {
	c := newCutter(limit)
	c.write([]byte(text))
	return c.String()
}
