package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/parley-dev/parley/api/session"
)

const (
	masked = "***"
	// shortest is the minimum length of a masked value. A shorter value also occurs in ordinary words.
	// If it were masked there, the other letters of the word would reveal it.
	shortest = 4
	// shortestPart is the minimum length of a masked part: a line or a base64 form of a value.
	shortestPart = 8
	// encodedLine is the line length at which programs wrap base64.
	encodedLine = 76
	// longestLine bounds how much of an unfinished line is buffered, in bytes.
	longestLine = 64 << 10
)

// quotedForms returns a value as different programs quote it. Go's JSON encoder escapes <, > and &.
// Other encoders do not. Some encoders escape every non-ASCII character.
func quotedForms(value string) []string {
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // a string can always be encoded
	escaped, _ := json.Marshal(value)
	var forms []string
	for _, quoted := range []string{strings.TrimSuffix(plain.String(), "\n"), string(escaped), strconv.Quote(value),
		strconv.QuoteToASCII(value)} {
		forms = append(forms, quoted[1:len(quoted)-1])
	}
	return forms
}

var (
	hexEscape = regexp.MustCompile("%[0-9A-F]{2}")
	// javaScript changes a query-escaped value into the result of JavaScript's encodeURIComponent.
	javaScript = strings.NewReplacer("+", "%20", "%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")
)

// urlForms returns a value as different programs write it into a URL's query, path or password.
// Hexadecimal digits may be in upper case or lower case.
func urlForms(value string) []string {
	query := url.QueryEscape(value)
	spaced := strings.ReplaceAll(query, "+", "%20")
	forms := []string{
		query, spaced, strings.ReplaceAll(spaced, "%2F", "/"), javaScript.Replace(query), url.PathEscape(value),
		strings.TrimPrefix(url.UserPassword("", value).String(), ":"),
	}
	for _, form := range slices.Clone(forms) {
		forms = append(forms, hexEscape.ReplaceAllStringFunc(form, strings.ToLower))
	}
	return forms
}

// secretParts returns all values, and the parts that are secret by themselves. These are the
// password in a token of the form user:password, and each token or key in a list.
func secretParts(values map[string]string) []string {
	parts := slices.Collect(maps.Values(values))
	if _, password, ok := strings.Cut(values[session.SecretVariable(session.ProviderTokenFile)], ":"); ok {
		parts = append(parts, password)
	}
	for _, key := range []string{session.ArchiveTokenFile, session.SnapshotKeyFile} { // each may be a list
		parts = append(parts, strings.Fields(values[session.SecretVariable(key)])...)
	}
	return parts
}

type mask struct {
	replacer *strings.Replacer
	// forms are all forms of all secrets, the longest first. byFirst groups them by their first
	// byte.
	forms   []string
	byFirst [256][]string
	// firstPairs is a bitmap of the first two bytes of all forms. It speeds up the search in texts
	// without a secret.
	firstPairs [1 << 16 / 8]byte
}

func (m *mask) replace(text string) string {
	for i := range len(text) - 1 {
		if pair := uint16(text[i])<<8 | uint16(text[i+1]); m.firstPairs[pair/8]&(1<<(pair%8)) == 0 {
			continue
		}
		for _, form := range m.byFirst[text[i]] {
			if strings.HasPrefix(text[i:], form) {
				return text[:i] + m.replacer.Replace(text[i:])
			}
		}
	}
	return text
}

func (m *mask) longest() int {
	if len(m.forms) == 0 {
		return 0
	}
	return len(m.forms[0])
}

// formsOf returns every form in which programs are likely to print the values.
func formsOf(values []string) map[string]bool {
	forms := map[string]bool{}
	add := func(form string, least int) {
		if len(form) >= least {
			forms[form] = true
		}
	}
	for _, value := range values {
		trimmed := strings.TrimSpace(value)
		add(trimmed, shortest)
		// Output is masked line by line, so each line of a secret needs its own form.
		for line := range strings.Lines(trimmed) {
			add(strings.TrimSpace(line), shortestPart)
		}
		for _, form := range slices.Concat(quotedForms(trimmed), urlForms(trimmed)) {
			add(form, shortest)
		}
		for _, form := range slices.Concat(encoded(value), encoded(trimmed)) {
			add(form, shortestPart)
		}
	}
	return forms
}

func newMask(forms map[string]bool) *mask {
	// The longest forms come first, because the replacer uses the first form that matches at a
	// position.
	sorted := slices.SortedFunc(maps.Keys(forms), func(a, b string) int { return len(b) - len(a) })
	m, pairs := &mask{forms: sorted}, []string(nil)
	for _, form := range sorted {
		pairs = append(pairs, form, masked)
		m.byFirst[form[0]] = append(m.byFirst[form[0]], form)
		pair := uint16(form[0])<<8 | uint16(form[1])
		m.firstPairs[pair/8] |= 1 << (pair % 8)
	}
	m.replacer = strings.NewReplacer(pairs...)
	return m
}

// encoded returns the base64 forms of a value: the whole base64 text, each line of that text, and
// three forms for a value within a longer encoded text, such as user:value. Base64 encodes groups
// of three bytes, so the form depends on the position of the value's first byte in its group.
func encoded(value string) []string {
	if len(value) < shortest {
		return nil
	}
	var forms []string
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		whole := encoding.EncodeToString([]byte(value))
		forms = append(forms, whole)
		for line := range slices.Chunk([]byte(whole), encodedLine) {
			forms = append(forms, string(line))
		}
		for before := range 3 {
			text := encoding.EncodeToString(append(make([]byte, before), value...))
			// A base64 character at either end may also contain bits of neighbouring bytes. Leave
			// it out.
			forms = append(forms, text[(before*8+5)/6:(before+len(value))*8/6])
		}
	}
	return forms
}

// Mask masks every secret in a text.
func (s *Store) Mask(text string) string { return s.mask.Load().replace(text) }

// Output merges lines from several sources into one writer and masks secrets in them.
type Output struct {
	store *Store
	mu    sync.Mutex
	out   io.Writer
}

// Output returns an Output that writes to out.
func (s *Store) Output(out io.Writer) *Output { return &Output{store: s, out: out} }

// Lines returns a writer for one source. If the source has a name, each line starts with this name.
// Close writes the unfinished last line.
func (o *Output) Lines(source string) io.WriteCloser {
	if source != "" {
		source = "[" + source + "] "
	}
	return &lines{output: o, prefix: source}
}

func (o *Output) write(prefix string, text []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Ignore a failed write, because it must not end the child process whose output is written.
	_, _ = o.out.Write(append([]byte(prefix), text...))
}

// lines buffers text until a line is complete, so a secret is never split.
type lines struct {
	output *Output
	prefix string
	mu     sync.Mutex
	held   []byte
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(l.held, text...)
	if end := bytes.LastIndexByte(l.held, '\n') + 1; end > 0 {
		for line := range bytes.Lines(l.held[:end]) {
			l.output.write(l.prefix, []byte(l.output.store.Mask(string(line))))
		}
		l.held = append(l.held[:0], l.held[end:]...)
	}
	if keep := l.output.store.mask.Load().longest(); len(l.held) > longestLine+keep {
		// A secret may begin at the end of the buffered text. Keep that end in the buffer.
		clean := l.output.store.Mask(string(l.held))
		cut := max(0, len(clean)-keep)
		l.output.write(l.prefix, []byte(clean[:cut]+"\n"))
		l.held = append(l.held[:0], clean[cut:]...)
	}
	return len(text), nil
}

func (l *lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) > 0 {
		l.output.write(l.prefix, []byte(l.output.store.Mask(string(l.held))+"\n"))
		l.held = nil
	}
	return nil
}
