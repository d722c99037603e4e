// Package markdown renders what agents and people write, as HTML that is safe to show whoever wrote
// it.
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

// HTML in the text is left out, and what is left is checked again by a policy that knows nothing of
// how it came about.
var (
	converter = goldmark.New(
		goldmark.WithExtensions(tables{extension.NewTableParagraphTransformer()}, extension.Strikethrough, extension.Linkify),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(links{}, 1))),
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
	p.AllowRelativeURLs(false) // they would be the facade's
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	p.AddTargetBlankToFullyQualifiedLinks(true)
	return p
}

// Render a text. One that would take long, or become large, is shown as it is.
func Render(text string) string {
	out := bounded{most: minHTML + maxGrowth*len(text)}
	if !isSimple(text) || converter.Convert([]byte(text), &out) != nil {
		return Plain(text)
	}
	return policy.Sanitize(out.String())
}

// Plain is a text as it is.
func Plain(text string) string { return "<pre>" + html.EscapeString(text) + "</pre>" }

// links are written here, so that it ends where there is no more room for them. Images become links
// too: the page loads nothing from elsewhere, so that nobody who writes a text learns who reads it.
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
