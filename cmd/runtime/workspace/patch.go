package workspace

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/diff"
	textdiff "github.com/go-git/go-git/v5/utils/diff"
	"github.com/sergi/go-diff/diffmatchpatch"
)

// diffTimeout bounds the search for a minimal diff of two texts. After this time, a larger diff is
// used.
const diffTimeout = 2 * time.Second

const contextLines = 3

// Patch returns the changes since the session's first commit in git's format. A patch of more than
// maxBytes ends with a note about the omitted files. mask masks secrets.
func (c *Changes) Patch(maxBytes int, mask func(string) string) string {
	var text strings.Builder
	for i, change := range c.Files {
		part := mask(c.patchOf(change))
		if text.Len()+len(part) > maxBytes {
			fmt.Fprintf(&text, "The rest of the diff is omitted: it is larger than %d bytes. %d of %d files are shown.\n",
				maxBytes, i, len(c.Files))
			break
		}
		text.WriteString(part)
	}
	return text.String()
}

func (c *Changes) patchOf(change Change) string {
	before, now, err := c.Contents(change.Path)
	patch := filePatch{binary: err != nil}
	if change.Kind != Added && change.Kind != Untracked {
		patch.from = newFileState(change.Path, before)
	}
	if change.Kind != Deleted {
		patch.to = newFileState(change.Path, now)
	}
	if err == nil {
		for _, d := range textdiff.DoWithTimeout(before, now, diffTimeout) {
			patch.chunks = append(patch.chunks, chunk{d})
		}
	}
	var text strings.Builder
	if err := diff.NewUnifiedEncoder(&text, contextLines).Encode(patch); err != nil {
		return fmt.Sprintf("The diff of %s cannot be shown.\n", change.Path)
	}
	return text.String()
}

type filePatch struct {
	from, to *fileState
	chunks   []diff.Chunk
	binary   bool
}

func (p filePatch) FilePatches() []diff.FilePatch { return []diff.FilePatch{p} }
func (p filePatch) Message() string               { return "" }
func (p filePatch) IsBinary() bool                { return p.binary }
func (p filePatch) Chunks() []diff.Chunk          { return p.chunks }

func (p filePatch) Files() (from, to diff.File) {
	// A missing file must be a nil interface. An interface that contains a nil *fileState is not
	// nil.
	if p.from != nil {
		from = p.from
	}
	if p.to != nil {
		to = p.to
	}
	return from, to
}

type fileState struct {
	path string
	hash plumbing.Hash
}

func newFileState(path, text string) *fileState {
	return &fileState{path, plumbing.ComputeHash(plumbing.BlobObject, []byte(text))}
}

func (f *fileState) Hash() plumbing.Hash     { return f.hash }
func (f *fileState) Mode() filemode.FileMode { return filemode.Regular }
func (f *fileState) Path() string            { return f.path }

type chunk struct{ diffmatchpatch.Diff }

func (c chunk) Content() string { return c.Text }

func (c chunk) Type() diff.Operation {
	switch c.Diff.Type {
	case diffmatchpatch.DiffInsert:
		return diff.Add
	case diffmatchpatch.DiffDelete:
		return diff.Delete
	}
	return diff.Equal
}
