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
		"empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	tool := newEditor(dir)
	for input, want := range map[string]string{
		`{"command":"str_replace","path":"twice","old_str":"x","new_str":"z"}`: "old_str occurs 2 times, in lines " +
			"1, 3",
		`{"command":"str_replace","path":"twice","old_str":"none","new_str":"z"}`:      "does not occur",
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
		`{"command":"view","path":"."}`:                                                "binary\nempty\ntwice\nwindows",
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
