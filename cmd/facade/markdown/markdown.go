// Package markdown renders what agents and people write, as HTML that is safe to show whoever wrote
// it.
package markdown

import (
	"bytes"
	"html"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// maxText is the longest text that is rendered. A longer one is shown as it is.
const maxText = 256 << 10

// HTML in the text is left out, and what is left is checked again by a policy that knows nothing of
// how it came about.
var (
	parser = goldmark.New(
		goldmark.WithExtensions(extension.Table, extension.Strikethrough, extension.Linkify),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(images{}, 1))),
	)
	policy = newPolicy()
)

func newPolicy() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "li", "blockquote", "pre", "code", "em", "strong", "del",
		"table", "thead", "tbody", "tr", "th", "td")
	p.AllowAttrs("start").Matching(bluemonday.Integer).OnElements("ol")
	p.AllowElements("ol")
	p.AllowAttrs("href").OnElements("a")
	p.AllowURLSchemes("http", "https", "mailto")
	p.RequireParseableURLs(true)
	p.AllowRelativeURLs(false) // they would be the facade's
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	p.AddTargetBlankToFullyQualifiedLinks(true)
	return p
}

// Render a text.
func Render(text string) string {
	var out bytes.Buffer
	if len(text) > maxText || parser.Convert([]byte(text), &out) != nil {
		return "<pre>" + html.EscapeString(text) + "</pre>"
	}
	return policy.Sanitize(out.String())
}

// images become links: the page loads nothing from elsewhere, so that nobody who writes a text
// learns who reads it.
type images struct{}

func (images) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindImage, func(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			_, err := w.WriteString("</a>")
			return ast.WalkContinue, err
		}
		image, is := node.(*ast.Image)
		if !is {
			return ast.WalkContinue, nil
		}
		_, err := w.WriteString(`<a href="` + html.EscapeString(string(image.Destination)) + `">`)
		if err == nil && !image.HasChildren() {
			_, err = w.WriteString(html.EscapeString(string(image.Destination)))
		}
		return ast.WalkContinue, err
	})
}
