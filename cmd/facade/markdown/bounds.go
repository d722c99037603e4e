package markdown

import (
	"bytes"
	"errors"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// These constants limit the length of a text, and those constructs that would cost the parser
// disproportionate time or memory.
const (
	// MaxText is the longest text, in bytes.
	MaxText = 64 << 10
	// maxCells limits the cells of all tables together. The renderer fills every row up to the
	// number of columns in the header, so a short text could have many cells.
	maxCells = 10_000
	// maxDepth limits how deeply lists and quotes can be nested. For every line, even a blank one,
	// the parser visits all open lists and quotes.
	maxDepth = 12
	// maxScans limits the bytes that the inline parsers scan, as a multiple of the length of the
	// text. A text shorter than minScanned bytes counts as minScanned bytes. Without a limit, a
	// parser could scan the whole paragraph for each mark that could begin emphasis or a link.
	maxScans, minScanned = 256, 4 << 10
	// maxGrowth limits the HTML to maxGrowth times the length of the text, plus minHTML bytes.
	// Without a limit, many references to one long link would make the HTML huge.
	maxGrowth, minHTML = 10, 4 << 10
)

func newParser() parser.Parser {
	blocks, inlines := parser.DefaultBlockParsers(), append(parser.DefaultInlineParsers(),
		util.Prioritized(extension.NewStrikethroughParser(), 500), util.Prioritized(extension.NewLinkifyParser(), 999))
	for i, inline := range inlines {
		inlines[i].Value = metered{inline.Value.(parser.InlineParser)}
	}
	for i, block := range blocks {
		if block.Value == parser.NewListParser() || block.Value == parser.NewBlockquoteParser() {
			blocks[i].Value = shallow{block.Value.(parser.BlockParser)}
		}
	}
	return parser.NewParser(parser.WithBlockParsers(blocks...), parser.WithInlineParsers(inlines...),
		parser.WithParagraphTransformers(parser.DefaultParagraphTransformers()...))
}

// metered is an inline parser with a limit on the bytes that it scans per text. Above the limit, it
// treats characters such as * and [ as plain text.
type metered struct{ parser.InlineParser }

// scansLeft is the number of bytes that the parser may still scan.
var scansLeft = parser.NewContextKey()

func (m metered) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	if util.IsPunct(block.Peek()) { // otherwise a word begins, which is scanned once
		left := pc.ComputeIfAbsent(scansLeft, func() any {
			scans := maxScans * max(len(block.Source()), minScanned)
			return &scans
		}).(*int)
		if lines := parent.Lines(); lines != nil && lines.Len() > 0 {
			*left -= lines.At(lines.Len()-1).Stop - lines.At(0).Start
		}
		if *left < 0 {
			return nil
		}
	}
	return m.InlineParser.Parse(parent, block, pc)
}

// CloseBlock ends the links that a paragraph left open.
func (m metered) CloseBlock(parent ast.Node, block text.Reader, pc parser.Context) {
	if closer, is := m.InlineParser.(parser.CloseBlocker); is {
		closer.CloseBlock(parent, block, pc)
	}
}

// shallow is a parser of lists or quotes. A list or quote that is nested deeper than maxDepth is
// plain text.
type shallow struct{ parser.BlockParser }

func (s shallow) Open(parent ast.Node, reader text.Reader, pc parser.Context) (ast.Node, parser.State) {
	depth := 0
	for node := parent; node != nil; node = node.Parent() {
		if depth++; depth > maxDepth {
			return nil, parser.NoChildren
		}
	}
	return s.BlockParser.Open(parent, reader, pc)
}

// tables is the table extension with a limit on cells. A larger table stays a paragraph.
type tables struct{ parser.ParagraphTransformer }

func (t tables) Extend(m goldmark.Markdown) {
	m.Parser().AddOptions(
		parser.WithParagraphTransformers(util.Prioritized(t, 200)),
		parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
	)
	m.Renderer().AddOptions(renderer.WithNodeRenderers(util.Prioritized(extension.NewTableHTMLRenderer(), 500)))
}

// cells is the context key of the number of table cells in a text so far.
var cells = parser.NewContextKey()

func (t tables) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	all, _ := pc.Get(cells).(int)
	lines, most := node.Lines(), 0
	for i := range lines.Len() {
		segment := lines.At(i)
		line := segment.Value(reader.Source())
		all += bytes.Count(line, []byte(`\|`))            // each escaped pipe is searched for in every cell
		if len(bytes.Trim(line, "-:| \t\r\n\v\f")) == 0 { // the line may separate a header from rows
			most = max(most, (bytes.Count(line, []byte("|"))+1)*(lines.Len()-i+1))
		}
	}
	all += most
	if all > maxCells {
		return
	}
	pc.Set(cells, all)
	t.ParagraphTransformer.Transform(node, reader, pc)
}

var errFull = errors.New("the HTML is too large")

type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errFull
	}
	return b.Buffer.Write(p)
}
