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
	// shortest is the minimum length of a masked value. A shorter value occurs in many texts by
	// chance, and a mask in such a text would reveal the value.
	shortest = 4
	// shortestPart is the minimum length of masked lines and encodings of a value.
	shortestPart = 8
	// encodedLine is the length at which programs break lines of base64.
	encodedLine = 76
	// longestLine bounds how much of a line is buffered to find secrets in it.
	longestLine = 64 << 10
)

// quotedForms are the ways in which programs quote a value: Go's JSON escapes <, > and &, other
// encoders do not, and some escape every non-ASCII character.
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
	// javaScript turns a query-escaped value into the form that JavaScript's encodeURIComponent
	// returns.
	javaScript = strings.NewReplacer("+", "%20", "%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")
)

// urlForms are the ways in which programs write a value into a URL: in its query, path or password,
// with hexadecimal digits in upper case or lower case.
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

// secretParts returns all values, and the parts of values that are secret by themselves: the
// password in a token of the form user:password, and each of several tokens or keys in one value.
func secretParts(values map[string]string) []string {
	parts := slices.Collect(maps.Values(values))
	if _, password, ok := strings.Cut(values[session.SecretVariable(session.ProviderTokenFile)], ":"); ok {
		parts = append(parts, password)
	}
	for _, key := range []string{session.ArchiveTokenFile, session.SnapshotKeyFile} { // each may have several
		parts = append(parts, strings.Fields(values[session.SecretVariable(key)])...)
	}
	return parts
}

// mask replaces secrets in texts.
type mask struct {
	replacer *strings.Replacer
	// forms are the forms of all secrets, the longest first. byFirst has the same forms by their
	// first byte.
	forms   []string
	byFirst [256][]string
	// begins is true for the first two bytes of each form. It makes the search fast in texts
	// without a secret.
	begins [1 << 16]bool
}

// replace masks every secret in a text.
func (m *mask) replace(text string) string {
	for i := range len(text) - 1 {
		if !m.begins[uint16(text[i])<<8|uint16(text[i+1])] {
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

// formsOf returns every form in which values are likely to be printed.
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
		// Output is masked line by line, so each line of a value must be masked by itself.
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
	// The longest forms come first: if several forms match at a position, the replacer uses the
	// first of them.
	sorted := slices.SortedFunc(maps.Keys(forms), func(a, b string) int { return len(b) - len(a) })
	m, pairs := &mask{forms: sorted}, []string(nil)
	for _, form := range sorted {
		pairs = append(pairs, form, masked)
		m.byFirst[form[0]] = append(m.byFirst[form[0]], form)
		m.begins[uint16(form[0])<<8|uint16(form[1])] = true
	}
	m.replacer = strings.NewReplacer(pairs...)
	return m
}

// encoded returns the base64 forms of a value: the base64 text of the value alone, each line of
// that text, and the value inside the base64 of a longer text such as user:value, where the value
// has three possible alignments.
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
			// Leave out the characters at both ends that also encode bits of neighbouring bytes.
			forms = append(forms, text[(before*8+5)/6:(before+len(value))*8/6])
		}
	}
	return forms
}

// Mask masks every secret in a text.
func (s *Store) Mask(text string) string { return s.mask.Load().replace(text) }

// Output merges lines from several sources into one writer and masks their secrets.
type Output struct {
	store *Store
	mu    sync.Mutex
	out   io.Writer
}

// Output returns an Output to a writer.
func (s *Store) Output(out io.Writer) *Output { return &Output{store: s, out: out} }

// Lines returns a writer for one source. Each line has the source's name, if any, as a prefix.
// Close writes an unterminated last line.
func (o *Output) Lines(source string) io.WriteCloser {
	if source != "" {
		source = "[" + source + "] "
	}
	return &lines{output: o, prefix: source}
}

func (o *Output) write(prefix string, text []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// A failed write is ignored, because it must not end a child.
	_, _ = o.out.Write(append([]byte(prefix), text...))
}

// lines buffers text until its line is complete, so that no secret is split.
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
		// The end of the held text may be the beginning of a secret, so it stays buffered.
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
