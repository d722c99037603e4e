package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

const (
	// maxEdited is the size of the largest file that can be viewed or edited, in bytes.
	maxEdited = 10 << 20
	// maxDiff is the size of the largest file, in bytes, whose old and new text the client receives
	// after an edit.
	maxDiff = 32 << 10
	// maxEntries limits the entries of a directory listing.
	maxEntries = 500
)

type editor struct{ dir string }

type editorInput struct {
	Command    string `json:"command"`
	Path       string `json:"path"`
	FileText   string `json:"file_text"`
	OldStr     string `json:"old_str"`
	NewStr     string `json:"new_str"`
	InsertLine *int   `json:"insert_line"`
	ViewRange  []int  `json:"view_range"`
}

func newEditor(dir string) *Tool {
	e := &editor{dir: dir}
	return &Tool{
		Tool: llm.Tool{Name: EditorName,
			Description: `View and edit files. Paths are relative to the directory of the session, or absolute.
- view: a file with line numbers, an image, or the files of a directory, two levels deep.
- create: write a whole file, a new one or over an old one.
- str_replace: replace old_str, which must occur exactly once, to the letter, by new_str.
- insert: put new_str after the line insert_line; 0 is the beginning.`,
			Schema: schema([]any{"command", "path"}, map[string]any{
				"command":     map[string]any{"type": "string", "enum": []any{"view", "create", "str_replace", "insert"}},
				"path":        text("The file or directory."),
				"file_text":   text("For create: the content."),
				"old_str":     text("For str_replace: the text to replace."),
				"new_str":     text("For str_replace and insert: the new text."),
				"insert_line": map[string]any{"type": "integer", "description": "For insert: the line to insert after."},
				"view_range": map[string]any{"type": "array", "items": map[string]any{"type": "integer"},
					"description": "For view: the first and the last line. As the last line, -1 means the end."},
			})},
		describe: e.describe, run: e.run,
	}
}

func (e *editor) describe(input json.RawMessage) Description {
	var in editorInput
	_ = json.Unmarshal(input, &in) // describe invalid input as far as possible
	d := Description{Kind: kindEdit, Acts: true, Title: strings.TrimSpace(in.Command + " " + in.Path)}
	if in.Command == "view" {
		d.Kind, d.Acts = kindRead, false
	}
	if in.Path != "" {
		location := acp.Location{Path: e.path(in.Path)}
		if len(in.ViewRange) > 0 {
			location.Line = in.ViewRange[0]
		}
		d.Locations = []acp.Location{location}
	}
	return d
}

func (e *editor) path(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(e.dir, path)
}

func (e *editor) run(_ context.Context, input json.RawMessage) Outcome {
	var in editorInput
	if err := json.Unmarshal(input, &in); err != nil {
		return failed("The input does not match the schema: %v", err)
	}
	if in.Path == "" {
		return failed("path is missing")
	}
	path := e.path(in.Path)
	var outcome Outcome
	var err error
	switch in.Command {
	case "view":
		outcome, err = view(path, in.ViewRange)
	case "create":
		outcome, err = create(path, in.FileText)
	case "str_replace":
		outcome, err = edit(path, func(old string) (string, error) { return replaceOnce(old, in.OldStr, in.NewStr) })
	case "insert":
		outcome, err = edit(path, func(old string) (string, error) { return insert(old, in.InsertLine, in.NewStr) })
	default:
		return failed("There is no command %q: use view, create, str_replace or insert.", in.Command)
	}
	if err != nil {
		return failed("%v", explainFile(in.Path, err))
	}
	outcome.Paths = []string{path}
	return outcome
}

// explainFile replaces common system errors with shorter messages.
func explainFile(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied", path)
	}
	return err
}

var errBinary = errors.New("the file is binary")

// read returns the content of a file. If the file is binary, it also returns errBinary.
func read(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", errors.New("this is not a file")
	case info.Size() > maxEdited:
		return "", fmt.Errorf("the file is too large to view or edit: %d MiB", info.Size()>>20)
	}
	content, err := os.ReadFile(path)
	if err == nil && bytes.IndexByte(content, 0) >= 0 {
		err = errBinary
	}
	return string(content), err
}

func view(path string, lines []int) (outcome Outcome, err error) {
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		outcome.Text, err = viewDir(path)
		return outcome, err
	}
	content, err := read(path)
	if errors.Is(err, errBinary) && strings.HasPrefix(http.DetectContentType([]byte(content)), "image/") {
		image, err := llm.NewImage([]byte(content))
		if err != nil {
			return outcome, fmt.Errorf("the image cannot be viewed: %w", err)
		}
		return Outcome{Text: "[The image " + filepath.Base(path) + "]", Images: []llm.Image{*image}}, nil
	}
	if err == nil {
		outcome.Text, err = viewLines(content, lines)
	}
	return outcome, err
}

func viewLines(content string, lines []int) (string, error) {
	if content == "" {
		return "[The file is empty.]", nil
	}
	all := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
	first, last := 1, len(all)
	if len(lines) == 2 {
		first = lines[0]
		if lines[1] != -1 {
			last = min(last, lines[1])
		}
	}
	if first < 1 || first > len(all) || last < first {
		return "", fmt.Errorf("view_range is not a range of lines of the file, which has %d lines", len(all))
	}
	return Cut(numbered(all[first-1:last], first), maxOutput), nil
}

func numbered(lines []string, first int) string {
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "%6d\t%s\n", first+i, line)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// viewDir lists two levels of a directory, without hidden entries.
func viewDir(root string) (string, error) {
	var b strings.Builder
	count := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return nil //nolint:nilerr // skip directories that cannot be read
		}
		relative, _ := filepath.Rel(root, path)
		if strings.HasPrefix(entry.Name(), ".") {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if count++; count > maxEntries {
			return fs.SkipAll
		}
		if !entry.IsDir() {
			fmt.Fprintln(&b, relative)
			return nil
		}
		fmt.Fprintln(&b, relative+"/")
		if strings.Contains(relative, string(filepath.Separator)) {
			return fs.SkipDir
		}
		return nil
	})
	if count > maxEntries {
		fmt.Fprintf(&b, "[… more than %d entries …]\n", maxEntries)
	}
	if b.Len() == 0 {
		return "[The directory is empty, or holds hidden files only.]", err
	}
	return strings.TrimSuffix(b.String(), "\n"), err
}
