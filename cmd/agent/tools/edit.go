package tools

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/acp"
)

// contextLines is the number of lines shown before and after an edit.
const contextLines = 4

func create(path, content string) (Outcome, error) {
	done := "The file was overwritten."
	old, err := read(path)
	if err != nil {
		old, done = "", "The file was created."
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return Outcome{}, err
	}
	return Outcome{Text: done, Diff: diff(path, old, content)}, write(path, content)
}

func edit(path string, change func(old string) (string, error)) (Outcome, error) {
	old, err := read(path)
	if err != nil {
		return Outcome{}, err
	}
	changed, err := change(old)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Text: "The file was edited. It now reads:\n" + snippet(old, changed), Diff: diff(path, old, changed)},
		write(path, changed)
}

func replaceOnce(content, old, replacement string) (string, error) {
	if old == "" {
		return "", errors.New("old_str is empty")
	}
	if !strings.Contains(content, old) && strings.Contains(content, "\r\n") {
		// The file has Windows line ends. A view does not show them, so the model's text lacks them.
		old, replacement = toCRLF(old), toCRLF(replacement)
	}
	switch n := strings.Count(content, old); n {
	case 0:
		return "", notFound(content, old)
	case 1:
		return strings.Replace(content, old, replacement, 1), nil
	default:
		return "", fmt.Errorf("old_str occurs %d times, in lines %s; nothing was changed. Add surrounding text until it "+
			"occurs once", n, occurrences(content, old))
	}
}

func toCRLF(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\n", "\r\n")
}

func occurrences(content, old string) string {
	var lines []string
	line := 1
	for _, before := range strings.SplitN(content, old, 11)[:min(10, strings.Count(content, old))] {
		line += strings.Count(before, "\n")
		lines = append(lines, strconv.Itoa(line))
		line += strings.Count(old, "\n")
	}
	return strings.Join(lines, ", ")
}

func insert(content string, after *int, added string) (string, error) {
	if after == nil {
		return "", errors.New("insert_line is missing")
	}
	lines := strings.SplitAfter(content, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if *after < 0 || *after > len(lines) {
		return "", fmt.Errorf("insert_line is outside of the file, which has %d lines", len(lines))
	}
	before, rest := strings.Join(lines[:*after], ""), strings.Join(lines[*after:], "")
	if before != "" && !strings.HasSuffix(before, "\n") {
		before += "\n"
	}
	if !strings.HasSuffix(added, "\n") {
		added += "\n"
	}
	return before + added + rest, nil
}

// write replaces a file atomically. It follows symbolic links and preserves the mode.
func write(path, content string) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	mode := fs.FileMode(0o666)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return errors.New("this is a directory")
	case err == nil:
		mode = info.Mode().Perm()
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".parley-new")
	file, openErr := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if openErr != nil {
		return openErr
	}
	_, err = file.WriteString(content)
	if info != nil {
		err = errors.Join(err, file.Chmod(mode)) // the umask must not change the mode of an existing file
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

func snippet(old, changed string) string {
	before, after := strings.Split(old, "\n"), strings.Split(changed, "\n")
	start := 0
	for start < len(before) && start < len(after) && before[start] == after[start] {
		start++
	}
	end := 0
	for end < len(before)-start && end < len(after)-start && before[len(before)-1-end] == after[len(after)-1-end] {
		end++
	}
	first, last := max(0, start-contextLines), min(len(after), len(after)-end+contextLines)
	return Cut(numbered(after[first:last], first+1), 4000)
}

func diff(path, old, changed string) *acp.ToolContent {
	if len(old) > maxDiff || len(changed) > maxDiff {
		return nil
	}
	return &acp.ToolContent{Type: "diff", Path: path, OldText: &old, NewText: &changed}
}
