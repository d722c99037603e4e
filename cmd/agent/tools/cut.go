package tools

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxOutput is how many characters of a tool's output the model is shown.
const maxOutput = 30_000

// longSecret is how long a secret on one line may be for a cut to take all of it, such as the key
// of an account as JSON.
const longSecret = 4 << 10

// cutter keeps the beginning and the end of a text, and says how much it left out between.
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
	// Cut only now and then, so that many small pieces do not cost a copy each.
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
	head := c.head[:len(c.head)-torn(reach(len(c.head)), func(i int) byte { return c.head[len(c.head)-1-i] })]
	tail := c.tail[torn(reach(len(c.tail)), func(i int) byte { return c.tail[i] }):]
	left := c.dropped + len(c.head) - len(head) + len(c.tail) - len(tail)
	return fmt.Sprintf("%s\n[… %d characters were left out here …]\n%s", ends(head), left, ends(tail))
}

// reach is how much of so many characters may go with a cut.
func reach(size int) int { return min(size, max(size/4, longSecret)) }

// torn is how many of the characters within reach of a cut go with it: the rest of a line or, if
// that is long, of a word. A part of a secret would not be known as one, and so be shown to all who
// watch.
func torn(reach int, at func(i int) byte) int {
	for _, between := range []string{"\r\n", " \t\r\n", " \t\r\n\"'`,;:&|<>(){}[]"} {
		for i := range reach {
			if strings.IndexByte(between, at(i)) >= 0 {
				return i
			}
		}
	}
	return reach
}

func (c *cutter) size() int { return len(c.head) + c.dropped + len(c.tail) }

// prompt is how questions to somebody at a terminal end. Secrets hold such signs too, but seldom
// before a space or after a word.
var prompt = regexp.MustCompile(`([:?>$#%)\]] |[\pL)\]][:?])$`)

// prompts says whether the text ends like a question to somebody at a terminal.
func (c *cutter) prompts() bool {
	last := c.head
	if len(c.tail) > 0 {
		last = c.tail
	}
	return prompt.Match(last[max(0, len(last)-2*utf8.UTFMax):])
}

// unfinished takes the line that the text ends in, or the word if that line is long, off its end.
func (c *cutter) unfinished() []byte {
	text := c.tail
	if c.dropped == 0 {
		text = append(bytes.Clone(c.head), c.tail...)
	}
	size := len(text)
	n := min(size, torn(min(size+1, longSecret), func(i int) byte {
		if i == size {
			return '\n' // before the text a line ended
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

// ends takes the halves of characters off that a cut left at the ends of a text.
func ends(text []byte) string {
	return strings.Trim(strings.ToValidUTF8(string(text), "\uFFFD"), "\uFFFD")
}

// Cut shortens a text in its middle.
func Cut(text string, limit int) string {
	c := newCutter(limit)
	c.write([]byte(text))
	return c.String()
}
