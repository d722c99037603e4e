package modelproxy

import "strings"

const (
	// largestValue is the largest usage that is read.
	largestValue = 16 << 10
	// longestKey is longer than every key of pickedPaths.
	longestKey = 32
)

// pickedPaths are the paths of the values that a picker reports.
var pickedPaths = map[string]bool{
	"type": true, "usage": true, "message.usage": true, "response.usage": true, "usageMetadata": true,
	"error": true,
}

// picker scans JSON of any length for the values at pickedPaths. It holds one such value at most, and reports it
// before the JSON ends. Invalid JSON is skipped.
type picker struct {
	picked func(path string, value []byte)

	depth             int
	inString, escaped bool
	// text is the start of the last string with its closing quote. Before a colon it is a key.
	text []byte
	// outer is the last key of the outermost object.
	outer string
	// taking is the depth of the object whose value at path is being read; 0 means that no value is
	// being read.
	taking int
	path   string
	value  []byte
	// complete is set once the outermost object has ended.
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

// take adds a byte to the value, or reports the value if it ends before this byte.
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

// startValue follows the colon after a key.
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
