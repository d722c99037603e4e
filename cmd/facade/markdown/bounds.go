package markdown

import (
	"bytes"
	"errors"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Limits of rendered texts. Each limits a construct that costs the parser disproportionate time or
// memory.
const (
	// maxText is the longest text, in bytes.
	maxText = 256 << 10
	// maxCells limits the cells of all tables together. Every row is rendered with all columns of
	// the header.
	maxCells = 10_000
	// maxNesting limits the lists and quotes that begin in one line.
	maxNesting = 100
	// maxMarks limits the marks of emphasis, code and links in a paragraph. The parser may compare
	// each mark with all earlier marks.
	maxMarks = 4000
	// maxGrowth is the largest ratio of HTML to text, beyond the first minHTML bytes. A link that
	// is defined once may be referenced often.
	maxGrowth, minHTML = 20, 4 << 10
)

// isSimple reports whether a text is cheap to parse.
func isSimple(text string) bool {
	if len(text) > maxText {
		return false
	}
	marks := 0
	for line := range strings.Lines(text) {
		if nesting(line) > maxNesting {
			return false
		}
		if strings.TrimSpace(line) == "" {
			marks = 0
			continue
		}
		for i := range len(line) {
			if strings.IndexByte("[]*_~`", line[i]) >= 0 {
				marks++
			}
		}
		if marks > maxMarks {
			return false
		}
	}
	return true
}

// nesting counts the lists and quotes that may begin in a line.
func nesting(line string) (depth int) {
	for {
		line = strings.TrimLeft(line, " \t\r\v\f")
		rest := strings.TrimLeft(line, "0123456789")
		switch {
		case strings.HasPrefix(line, ">"):
			line = line[1:]
		case rest != "" && len(rest) < len(line) && strings.ContainsAny(rest[:1], ".)"),
			rest != "" && len(rest) == len(line) && strings.ContainsAny(rest[:1], "-+*"):
			if line = rest[1:]; line != "" && !strings.ContainsAny(line[:1], " \t\r\n\v\f") {
				return depth
			}
		default:
			return depth
		}
		depth++
	}
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

// cells is the number of table cells of a text so far.
var cells = parser.NewContextKey()

func (t tables) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	all, _ := pc.Get(cells).(int)
	lines, most := node.Lines(), 0
	for i := range lines.Len() {
		segment := lines.At(i)
		line := segment.Value(reader.Source())
		all += bytes.Count(line, []byte(`\|`))            // searched in every cell
		if len(bytes.Trim(line, "-:| \t\r\n\v\f")) == 0 { // it may separate a header from rows
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

// bounded is a buffer with a size limit.
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
