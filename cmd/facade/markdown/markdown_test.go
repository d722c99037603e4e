package markdown

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestMarkdownIsRendered(t *testing.T) {
	for text, want := range map[string]string{
		"a **b** `c`":       "<p>a <strong>b</strong> <code>c</code></p>",
		"```go\nx < y\n```": "<pre><code>x &lt; y\n</code></pre>",
		"3. three":          "<ol start=\"3\">\n<li>three</li>\n</ol>",
		"|a|\n|-|\n|b|": "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n" +
			"<tbody>\n<tr>\n<td>b</td>\n</tr>\n</tbody>\n</table>",
		"![a cat](https://e.example/c)": `<p><a href="https://e.example/c" rel="nofollow noreferrer noopener" ` +
			`target="_blank">a cat</a></p>`,
		"[here](/api/settings)":           "<p>here</p>",
		"<b onclick=\"x()\">raw</b> text": "<p>raw text</p>",
	} {
		if got := strings.TrimSpace(Render(text)); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	if got := Render(strings.Repeat("*", MaxText) + "<"); !strings.HasPrefix(got, "<pre>*") || !strings.HasSuffix(got,
		"*&lt;</pre>") {
		t.Errorf("a long text is %.20s…", got)
	}
}

func TestRenderedTextsRunNoScript(t *testing.T) {
	for _, text := range []string{
		"<script>x()</script>", "<img src=x onerror=x()>", "[a](javascript:x())", "![a](javascript:x())",
		"[a](data:text/html,x)",
		"<svg/onload=x()>", "[a](https://e.example \"\\\" onclick=x()\")", "<style>*{}</style>",
		"<form action=/api/signout><input></form>",
		"![\"onerror=x()](https://e.example/\"onerror=x())", "<a href=\"java\nscript:x()\">a</a>", "<iframe src=/>",
		"<meta http-equiv=refresh>",
	} {
		got := strings.ToLower(Render(text))
		for _, bad := range []string{"<script", "<img", "javascript:", "data:", "<svg", " onclick=", " onerror=x", "<style",
			"<form", "<input", "<iframe", "<meta"} {
			if strings.Contains(got, bad) {
				t.Errorf("%s becomes %s", text, got)
			}
		}
	}
}

// enough is the minimum CPU time of a measurement. The CPU clock of a thread may advance in steps
// of 4 ms, so a shorter measurement would be inexact.
const enough = 40 * time.Millisecond

// cpuTime returns the average CPU time of rendering a text. It renders the text repeatedly on one
// thread, until the thread has used enough CPU time.
func cpuTime(text string) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var usage syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_THREAD, &usage) // Getrusage never fails for this thread
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	before := used()
	for n := time.Duration(1); ; n++ {
		_ = Render(text)
		if took := used() - before; took >= enough {
			return took / n
		}
	}
}

// maxRatio limits the CPU time of a hostile text, as a multiple of the CPU time of an ordinary text
// of the same length.
const maxRatio = 30

// The texts of one user or agent must not use up the CPU time and memory that all users share.
func TestHostileTextsTakeLittleMoreTimeThanOrdinaryTexts(t *testing.T) {
	of := func(part string) string { return strings.Repeat(part, MaxText/len(part)) }
	rising := func(part func(i int) string) string {
		var text strings.Builder
		for i := 1; text.Len() < MaxText; i++ {
			text.WriteString(part(i))
		}
		return text.String()[:MaxText]
	}
	wide := of("a|")[:1000] + "\n" + of("-|")[:1000] + "\n"
	url := "[a]: https://e.example/"
	nested := rising(func(i int) string { return strings.Repeat("  ", i) + "- a\n" })[:4<<10]
	prose := of("Some words of an ordinary text, with a `name` and a **mark**.\nThe paragraph ends here.\n\n")
	ordinary := min(cpuTime(prose), cpuTime(prose)) // the first run also fills caches
	for name, text := range map[string]string{
		"a wide and long table":             wide + of("a\n")[:20_000],
		"a table with CRLF line ends":       strings.ReplaceAll(wide, "\n", "\r\n") + of("a\r\n"),
		"a table in a quote":                "> " + strings.ReplaceAll(wide, "\n", "\n> ") + of("a\n> "),
		"a table in a list":                 "- " + strings.ReplaceAll(wide, "\n", "\n  ") + of("a\n  "),
		"a table after an invalid header":   "a\n:\n" + wide + of("a\n"),
		"many tables":                       of(wide + "\n"),
		"small tables":                      of("a|b\n-|-\nc|d\n\n"),
		"many possible header separators":   "a|b\n" + of("-|-\n"),
		"many references to a long link":    url + of("b")[:MaxText/2] + "\n\n" + of("[a]"),
		"many references to a long image":   url + of("b")[:MaxText/2] + "\n\n" + of("![a]"),
		"a short text with many references": url + of("b")[:2000] + "\n\n" + of("[a]")[:3000],
		"link definitions":                  of("[a]: b\n"),
		"link definitions with titles":      of("[a]: b\n\"c\n"),
		"quotes in quotes":                  of(">"),
		"quotes in quotes, line by line":    of(strings.Repeat(">", 100) + "\n"),
		"lists in lists":                    of("- "),
		"numbered lists in lists":           of("1. "),
		"lists in quotes":                   of("> - "),
		"lists in lists, line by line":      of(strings.Repeat("- ", 50) + "\n"),
		"blank lines in nested lists":       nested + of("\n"),
		"deeper and deeper lists":           rising(func(i int) string { return strings.Repeat(" ", i) + "- a\n" }),
		"opening brackets":                  of("["),
		"brackets":                          of("[")[:MaxText/2] + of("]"),
		"pairs of brackets":                 of("[]"),
		"brackets in paragraphs":            of(strings.Repeat("[", 500) + strings.Repeat("]", 500) + "\n\n"),
		"brackets in long paragraphs":       of(strings.Repeat("[", 1900) + strings.Repeat("]", 1900) + "\n\n"),
		"images in images":                  of("![")[:MaxText/2] + of("]"),
		"links in links":                    of("[a](b")[:MaxText/2] + of(")"),
		"links without an end":              of("[a]("),
		"links with an unclosed title":      of("[a](b \""),
		"links with an unclosed address":    of("[a](<b"),
		"links":                             of("[a](http:b)"),
		"links in paragraphs":               of("[a](http:b)\n\n"),
		"bare addresses":                    of("www.a.b "),
		"mail addresses":                    of("a_a@b.c_"),
		"unclosed emphasis":                 of("*a_ "),
		"emphasis that closes nothing":      of("a**b") + of("c* "),
		"emphasis of changing length":       of("*a **a ***a _a __a "),
		"nested emphasis":                   of("*a **a ")[:MaxText/2] + of("** b* b"),
		"strikethrough":                     of("~~a~ "),
		"backticks":                         of("`"),
		"backticks of rising length":        rising(func(i int) string { return strings.Repeat("`", i) + "a" }),
		"unclosed code":                     rising(func(i int) string { return strings.Repeat("`", i%500+1) + "\n" }),
		"escaped pipes":                     "a|b\n-|-\n" + of("`\\|`"),
		"pipes in rows of code":             "a|b\n-|-\n" + of("`\\|`\n"),
		"opening angle brackets":            of("<"),
		"unclosed comments":                 of("<!--"),
		"unclosed tags":                     of("<a x=\"<b y='"),
		"tags with attributes":              of("<a ") + of("b "),
		"unclosed instructions":             of("a <?"),
		"HTML blocks":                       of("<a>\n"),
		"entities":                          of("&amp;"),
		"backslashes":                       of("\\"),
		"exclamation marks":                 of("!"),
		"thematic breaks":                   of("---\n"),
		"headings":                          of("# a\n"),
		"underlined headings":               of("a\n-\n"),
		"fences":                            of("```\n"),
		"NUL bytes":                         of("\x00"),
		"invalid UTF-8":                     of("*\xff"),
	} {
		var before, after runtime.MemStats
		text = text[:min(len(text), MaxText)]
		runtime.ReadMemStats(&before)
		got := Render(text)
		runtime.ReadMemStats(&after)
		ratio := float64(cpuTime(text)) / float64(ordinary)
		for range 5 { // other processes slow down this process; measure both texts in the same conditions
			if ratio > maxRatio {
				ratio = min(ratio, float64(cpuTime(text))/float64(cpuTime(prose)))
			}
		}
		t.Logf("%-35s %5.1f", name, ratio)
		if ratio > maxRatio {
			t.Errorf("%s: rendering takes %.0f times the time of an ordinary text", name, ratio)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 128<<20 && !testenv.Race { // the race detector allocates more
			t.Errorf("%s: rendering takes %d MiB", name, took>>20)
		}
		if len(got) > largest(text) {
			t.Errorf("%s: %d bytes become %d", name, len(text), len(got))
		}
	}
}

// largest returns the maximum size of a text's HTML, including the attributes that the policy adds
// to links.
func largest(text string) int { return 3 * (minHTML + maxGrowth*len(text)) }

func TestLongOrdinaryTextsAreRendered(t *testing.T) {
	for text, want := range map[string]int{
		"|a|b|\n|-|-|\n" + strings.Repeat("|c|d|\n", 2000):                      2001,
		strings.Repeat("a **b** `c` [d](https://e.example)\n\n", MaxText/40):    0,
		"[a]: https://e.example/x\n\n" + strings.Repeat("see [a]\n", 1000):      0,
		strings.Repeat("> ", 20) + "a":                                          0,
		strings.Repeat("- - - -\n", 100) + strings.Repeat("-", 200) + "\n1.0.0": 0,
	} {
		got := Render(text)
		if strings.HasPrefix(got, "<pre>") || strings.Count(got, "<tr>") != want {
			t.Errorf("%.40q… is %.60s…", text, got)
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add("a **b** <script>")
	f.Add("[a]: b\n\n|a|b|\n|-|-|\n[a]\n> - 1. ![a]")
	f.Fuzz(func(t *testing.T, text string) {
		got := Render(text)
		if strings.Contains(strings.ToLower(got), "<script") {
			t.Errorf("%q becomes a script", text)
		}
		if len(got) > largest(text) {
			t.Errorf("%q becomes %d bytes", text, len(got))
		}
	})
}
