package modelproxy

// largestValue is how much of a value is kept; that of a longer one is not looked at.
const largestValue = 16 << 10

// picker reads JSON as it comes and picks single values out of it, without holding the rest. What
// is no JSON it passes by.
type picker struct {
	// picked is called with the path of a value, such as message.usage, and its text.
	picked func(path string, value []byte)

	depth    int
	object   [3]bool   // whether the container of that depth is an object
	keys     [3]string // the key at that depth
	inString bool
	escaped  bool
	// atKey: the next string is a key; inKey: this one is.
	atKey, inKey bool
	key          []byte
	// taking a value at this depth; 0 means none.
	taking int
	path   string
	value  []byte
	begun  bool
	broken bool
}

// wanted are the paths that are picked.
var wanted = map[string]bool{"usage": true, "message.usage": true, "response.usage": true, "usageMetadata": true,
	"type": true}

func (p *picker) reset() { *p = picker{picked: p.picked} }

// complete says whether a whole value was read.
func (p *picker) complete() bool { return p.begun && p.depth == 0 && !p.inString }

func (p *picker) read(text []byte) {
	for _, c := range text {
		if p.broken {
			return
		}
		p.next(c)
	}
}

func (p *picker) next(c byte) {
	switch {
	case p.inString:
		p.take(c)
		p.inside(c)
	case c == '"':
		p.take(c)
		p.inString, p.inKey = true, p.atKey && p.depth < len(p.keys) && p.object[p.depth]
		p.key = p.key[:0]
	case c == '{' || c == '[':
		p.take(c)
		p.begun = true
		p.depth++
		if p.depth < len(p.object) {
			p.object[p.depth], p.keys[p.depth] = c == '{', ""
		}
		p.atKey = c == '{'
	case c == '}' || c == ']':
		p.close(c)
	case c == ',':
		p.endOfValue()
		p.take(c)
		p.atKey = p.depth < len(p.object) && p.object[p.depth]
	case c == ':':
		p.take(c)
		p.colon()
	default:
		p.take(c)
	}
}

// inside a string.
func (p *picker) inside(c byte) {
	switch {
	case p.escaped:
		p.escaped = false
	case c == '\\':
		p.escaped = true
	case c == '"':
		p.inString = false
		if p.inKey {
			p.keys[p.depth], p.inKey, p.atKey = string(p.key), false, false
		}
		return
	}
	// A longer key is none of those that are wanted.
	if p.inKey && len(p.key) < 32 {
		p.key = append(p.key, c)
	}
}

func (p *picker) close(c byte) {
	p.endOfValue()
	p.take(c)
	p.depth--
	p.atKey = false
	if p.depth < 0 {
		p.broken = true
	}
	if p.taking > 0 && p.depth < p.taking {
		p.taking = 0
	}
}

// colon: a value begins.
func (p *picker) colon() {
	if p.taking > 0 || p.depth == 0 || p.depth >= len(p.object) || !p.object[p.depth] {
		return
	}
	path := p.keys[1]
	if p.depth == 2 {
		if !p.object[1] {
			return
		}
		path += "." + p.keys[2]
	}
	if wanted[path] {
		p.taking, p.path, p.value = p.depth, path, p.value[:0]
	}
}

func (p *picker) take(c byte) {
	if p.taking > 0 && len(p.value) <= largestValue {
		p.value = append(p.value, c)
	}
}

// endOfValue is before the comma or bracket that follows a value.
func (p *picker) endOfValue() {
	if p.taking == 0 || p.depth != p.taking {
		return
	}
	if len(p.value) <= largestValue {
		p.picked(p.path, p.value)
	}
	p.taking = 0
}
