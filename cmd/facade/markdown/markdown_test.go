package markdown

import (
	"strings"
	"testing"
)

func TestWhatAgentsWriteIsRendered(t *testing.T) {
	for text, want := range map[string]string{
		"a **b** `c`":                     "<p>a <strong>b</strong> <code>c</code></p>",
		"```go\nx < y\n```":               "<pre><code>x &lt; y\n</code></pre>",
		"3. three":                        "<ol start=\"3\">\n<li>three</li>\n</ol>",
		"|a|\n|-|\n|b|":                   "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td>b</td>\n</tr>\n</tbody>\n</table>",
		"![a cat](https://e.example/c)":   `<p><a href="https://e.example/c" rel="nofollow noreferrer noopener" target="_blank">a cat</a></p>`,
		"[here](/api/settings)":           "<p>here</p>",
		"<b onclick=\"x()\">raw</b> text": "<p>raw text</p>",
	} {
		if got := strings.TrimSpace(Render(text)); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	if got := Render(strings.Repeat("*", maxText) + "<"); !strings.HasPrefix(got, "<pre>*") || !strings.HasSuffix(got, "*&lt;</pre>") {
		t.Errorf("a long text is %.20s…", got)
	}
}

func TestNothingThatIsWrittenRuns(t *testing.T) {
	for _, text := range []string{
		"<script>x()</script>", "<img src=x onerror=x()>", "[a](javascript:x())", "![a](javascript:x())", "[a](data:text/html,x)",
		"<svg/onload=x()>", "[a](https://e.example \"\\\" onclick=x()\")", "<style>*{}</style>", "<form action=/api/signout><input></form>",
		"![\"onerror=x()](https://e.example/\"onerror=x())", "<a href=\"java\nscript:x()\">a</a>", "<iframe src=/>", "<meta http-equiv=refresh>",
	} {
		got := strings.ToLower(Render(text))
		for _, bad := range []string{"<script", "<img", "javascript:", "data:", "<svg", " onclick=", " onerror=x", "<style", "<form", "<input", "<iframe", "<meta"} {
			if strings.Contains(got, bad) {
				t.Errorf("%s becomes %s", text, got)
			}
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add("a **b** <script>")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(strings.ToLower(Render(text)), "<script") {
			t.Errorf("%q runs", text)
		}
	})
}
