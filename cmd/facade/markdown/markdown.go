// Package markdown renders untrusted Markdown of agents and people as safe HTML.
package markdown

import (
	"html"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	safe "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"
)

// The converter drops HTML in the text. The policy then sanitizes the HTML that the converter
// wrote: it keeps only the elements and attributes that newPolicy allows.
var (
	converter = goldmark.New(
		goldmark.WithParser(newParser()),
		goldmark.WithExtensions(tables{extension.NewTableParagraphTransformer()}),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(links{}, 1),
			util.Prioritized(extension.NewStrikethroughHTMLRenderer(), 500))),
	)
	policy = newPolicy()
)

func newPolicy() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "li", "blockquote", "pre", "code", "em",
		"strong", "del",
		"table", "thead", "tbody", "tr", "th", "td")
	p.AllowAttrs("start").Matching(bluemonday.Integer).OnElements("ol")
	p.AllowElements("ol")
	p.AllowAttrs("href").OnElements("a")
	p.AllowURLSchemes("http", "https", "mailto")
	p.RequireParseableURLs(true)
	p.AllowRelativeURLs(false) // relative URLs would point to the facade
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	p.AddTargetBlankToFullyQualifiedLinks(true)
	return p
}

// Render renders a text. A text that is too long, or whose HTML is too long, is shown as plain
// text.
func Render(text string) string {
	out := bounded{most: minHTML + maxGrowth*len(text)}
	if len(text) > MaxText || converter.Convert([]byte(text), &out) != nil {
		return Plain(text)
	}
	return policy.Sanitize(out.String())
}

// Plain shows a text as it is.
func Plain(text string) string { return "<pre>" + html.EscapeString(text) + "</pre>" }

// links renders links and images. It returns write errors, because a write error at the size limit
// must stop the conversion. Images become links: if the page loaded an image, the author of the
// text could identify its readers.
type links struct{}

func (links) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindLink, func(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, is := node.(*ast.Link); is && entering {
			return open(w, string(util.URLEscape(link.Destination, true)))
		}
		return end(w)
	})
	r.Register(ast.KindImage, func(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		image, is := node.(*ast.Image)
		if !is || !entering {
			return end(w)
		}
		status, err := open(w, string(image.Destination))
		if err == nil && !image.HasChildren() {
			_, err = w.WriteString(html.EscapeString(string(image.Destination)))
		}
		return status, err
	})
}

func open(w util.BufWriter, destination string) (ast.WalkStatus, error) {
	if safe.IsDangerousURL([]byte(destination)) {
		destination = ""
	}
	_, err := w.WriteString(`<a href="` + html.EscapeString(destination) + `">`)
	return ast.WalkContinue, err
}

func end(w util.BufWriter) (ast.WalkStatus, error) {
	_, err := w.WriteString("</a>")
	return ast.WalkContinue, err
}
