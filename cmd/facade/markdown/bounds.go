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

// What a text may hold and still be rendered. Each bounds something that takes the parser more than
// its share of time or memory for its length.
const (
	// maxText is the longest text.
	maxText = 256 << 10
	// maxCells is how many cells all tables have together: a row has all columns of its header,
	// whatever is written in it.
	maxCells = 10_000
	// maxNesting is how many lists and quotes begin in one line.
	maxNesting = 100
	// maxMarks is how many marks of emphasis, code and links are in one paragraph: each may be
	// compared with all before.
	maxMarks = 4000
	// maxGrowth is how many times its own length a text becomes, beside the first few bytes: a
	// link is written once and may be referred to often.
	maxGrowth, minHTML = 20, 4 << 10
)

// isSimple says that a text is parsed in a moment.
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

// nesting is how many lists and quotes may begin in a line.
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

// tables are those of the extension, as long as they have few cells. One that has more stays a
// paragraph.
type tables struct{ parser.ParagraphTransformer }

func (t tables) Extend(m goldmark.Markdown) {
	m.Parser().AddOptions(
		parser.WithParagraphTransformers(util.Prioritized(t, 200)),
		parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
	)
	m.Renderer().AddOptions(renderer.WithNodeRenderers(util.Prioritized(extension.NewTableHTMLRenderer(), 500)))
}

// cells are those of all tables of a text up to now.
var cells = parser.NewContextKey()

func (t tables) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	all, _ := pc.Get(cells).(int)
	lines, most := node.Lines(), 0
	for i := range lines.Len() {
		segment := lines.At(i)
		line := segment.Value(reader.Source())
		all += bytes.Count(line, []byte(`\|`))            // looked for in every cell
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

var errFull = errors.New("it becomes too large")

// bounded holds so many bytes and no more.
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
