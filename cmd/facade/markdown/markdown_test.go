package markdown

import (
	"runtime"
	"strings"
	"testing"
	"time"
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
	if got := Render(strings.Repeat("*", maxText) + "<"); !strings.HasPrefix(got, "<pre>*") || !strings.HasSuffix(got,
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

// One user's texts must not take the time and memory of all others.
func TestExpensiveTextsAreRenderedFast(t *testing.T) {
	of := func(part string) string { return strings.Repeat(part, maxText/len(part)/2) }
	wide := of("a|")[:1000] + "\n" + of("-|")[:1000] + "\n"
	for name, text := range map[string]string{
		"a wide and long table":             wide + of("a\n")[:20_000],
		"a table with CRLF line ends":       strings.ReplaceAll(wide, "\n", "\r\n") + of("a\r\n"),
		"a table in a quote":                "> " + strings.ReplaceAll(wide, "\n", "\n> ") + of("a\n> "),
		"a table in a list":                 "- " + strings.ReplaceAll(wide, "\n", "\n  ") + of("a\n  "),
		"a table after an invalid header":   "a\n:\n" + wide + of("a\n"),
		"many tables":                       strings.Repeat(wide+"\n", maxText/len(wide)),
		"many possible header separators":   "a|b\n" + of("-|-\n"),
		"many references to a long link":    "[a]: https://e.example/" + of("b") + "\n\n" + of("[a]"),
		"many references to a long image":   "[a]: https://e.example/" + of("b") + "\n\n" + of("![a]"),
		"a short text with such references": "[a]: https://e.example/" + of("b")[:2000] + "\n\n" + of("[a]")[:3000],
		"quotes in quotes":                  of(">"),
		"lists in lists":                    of("- "),
		"numbered lists in lists":           of("1. "),
		"lists in quotes":                   of("> - "),
		"brackets":                          of("[") + of("]"),
		"unclosed emphasis":                 of("*a_ "),
		"escaped pipes":                     "a|b\n-|-\n" + of("`\\|`"),
		"pipes in rows of code":             "a|b\n-|-\n" + of("`\\|`\n"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := time.Now()
		got := Render(text)
		took := time.Since(begun)
		runtime.ReadMemStats(&after)
		if took > 5*time.Second {
			t.Errorf("%s: rendering takes %s", name, took)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 100<<20 {
			t.Errorf("%s: rendering takes %d MiB", name, took>>20)
		}
		if len(got) > largest(text) {
			t.Errorf("%s: %d bytes become %d", name, len(text), len(got))
		}
	}
}

// largest returns the maximum size of the HTML of a text, with the attributes that the policy adds
// to links.
func largest(text string) int { return 3 * (minHTML + maxGrowth*len(text)) }

func TestLongOrdinaryTextsAreRendered(t *testing.T) {
	for text, want := range map[string]int{
		"|a|b|\n|-|-|\n" + strings.Repeat("|c|d|\n", 2000):                      2001,
		strings.Repeat("a **b** `c` [d](https://e.example)\n\n", maxText/40):    0,
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
