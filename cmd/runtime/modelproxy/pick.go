package modelproxy

import "strings"

const (
	// largestValue is the size in bytes of the largest value that a picker reports.
	largestValue = 16 << 10
	// longestKey limits the bytes that a picker keeps of a key. Keys in pickedPaths are shorter.
	longestKey = 32
)

var pickedPaths = map[string]bool{
	"type": true, "usage": true, "message.usage": true, "response.usage": true, "usageMetadata": true,
	"error": true,
}

// picker scans JSON of any length for the values at pickedPaths. It holds at most one value in
// memory and reports each value as soon as the value is complete. It skips invalid JSON.
type picker struct {
	picked func(path string, value []byte)

	depth             int
	inString, escaped bool
	// text is the string that was read last, with its closing quote. It is cut after longestKey
	// bytes. The string is a key if a colon follows it.
	text []byte
	// outer is the current key in the outermost object.
	outer string
	// taking is the depth of the object that contains the value being read. It is 0 if no value is
	// being read. path is the path of the value.
	taking   int
	path     string
	value    []byte
	complete bool
}

func (p *picker) reset() { *p = picker{picked: p.picked} }

func (p *picker) read(json []byte) {
	for _, c := range json {
		p.next(c)
	}
}

func (p *picker) next(c byte) {
	if p.taking > 0 {
		p.take(c)
	}
	if p.inString && len(p.text) < longestKey {
		p.text = append(p.text, c)
	}
	switch {
	case p.escaped:
		p.escaped = false
	case p.inString && c == '\\':
		p.escaped = true
	case c == '"':
		if p.inString = !p.inString; p.inString {
			p.text = p.text[:0]
		}
	case p.inString:
	case c == '{' || c == '[':
		p.depth++
	case c == '}' || c == ']':
		p.depth--
		p.complete = p.depth == 0
	case c == ':' && p.taking == 0 && (p.depth == 1 || p.depth == 2):
		p.startValue()
	}
}

// take adds a byte to the value, or reports the value if the byte ends it.
func (p *picker) take(c byte) {
	switch {
	case !p.inString && p.depth == p.taking && (c == ',' || c == '}'):
		if len(p.value) <= largestValue {
			p.picked(p.path, p.value)
		}
		p.taking = 0
	case len(p.value) <= largestValue:
		p.value = append(p.value, c)
	}
}

// startValue handles the colon after a key. If the key's path is in pickedPaths, the value is read.
func (p *picker) startValue() {
	p.path = strings.TrimSuffix(string(p.text), `"`)
	if p.depth == 1 {
		p.outer = p.path
	} else {
		p.path = p.outer + "." + p.path
	}
	if pickedPaths[p.path] {
		p.taking, p.value = p.depth, p.value[:0]
	}
}
