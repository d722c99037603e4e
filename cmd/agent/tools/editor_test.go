package tools

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheEditorExplainsErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"twice": "x\ny\nx\n", "binary": "a\x00b", "windows": "a\r\nb\r\n",
		"empty": "", "code": "func a() {\n\tif x {\n\t\treturn first\n\t}\n}\n",
		"damaged": "\x89PNG\r\n\x1a\n\x00\x00"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	tool := newEditor(dir)
	for input, want := range map[string]string{
		`{"command":"str_replace","path":"twice","old_str":"x","new_str":"z"}`: "old_str occurs 2 times, in lines " +
			"1, 3",
		`{"command":"str_replace","path":"twice","old_str":"none","new_str":"z"}`: "View the file and copy",
		`{"command":"str_replace","path":"code","old_str":"  if x {\n    return first","new_str":"z"}`: "differ only in " +
			"whitespace:\n     2\t\tif x {\n     3\t\t\treturn first\n",
		`{"command":"str_replace","path":"code","old_str":"\tif x {\n\t\treturn frist\n\t}","new_str":"z"}`: "similar " +
			"lines are:\n     2\t\tif x {\n     3\t\t\treturn first\n     4\t\t}\nCopy",
		`{"command":"str_replace","path":"code","old_str":"     2\t\tif x {","new_str":"z"}`: "the command view prints",
		`{"command":"view","path":"damaged"}`: "cannot be viewed: " +
			"it is damaged",
		`{"command":"str_replace","path":"twice","old_str":"","new_str":"z"}`:          "old_str is empty",
		`{"command":"view","path":"none"}`:                                             "none does not exist",
		`{"command":"view","path":"binary"}`:                                           "the file is binary",
		`{"command":"view","path":"empty"}`:                                            "The file is empty",
		`{"command":"view","path":"twice","view_range":[9,10]}`:                        "which has 3 lines",
		`{"command":"insert","path":"twice","new_str":"z"}`:                            "insert_line is missing",
		`{"command":"insert","path":"twice","insert_line":7,"new_str":"z"}`:            "which has 3 lines",
		`{"command":"undo_edit","path":"twice"}`:                                       "There is no command",
		`{"command":"create","path":".","file_text":"z"}`:                              "this is a directory",
		`{"command":"view","path":5}`:                                                  "does not match the schema",
		`{"command":`:                                                                  "not a JSON object",
		`{"command":"view","path":"."}`:                                                "binary\ncode\ndamaged\nempty",
		`{"command":"str_replace","path":"windows","old_str":"a\nb","new_str":"c\nd"}`: "The file was edited",
	} {
		if got := tool.Run(context.Background(), input); !strings.Contains(got.Text, want) {
			t.Errorf("%s: %q, want %q", input, got.Text, want)
		}
	}
	if content, _ := os.ReadFile(filepath.Join(dir, "windows")); string(content) != "c\r\nd\r\n" {
		t.Errorf("the file is %q", content)
	}
	if info, _ := os.Stat(filepath.Join(dir, "windows")); info.Mode().Perm() != 0o640 {
		t.Errorf("the mode is %v", info.Mode())
	}
}
