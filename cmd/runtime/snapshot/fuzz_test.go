package snapshot

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
)

// FuzzApply checks that no snapshot writes outside of the workspace.
func FuzzApply(f *testing.F) {
	begin, last := entry{name: stateName, text: "{}"}, entry{name: endName, text: "{}"}
	for _, entries := range [][]entry{
		{begin, last}, {begin, {name: "workspace/f", text: "x"}, last}, {begin, {name: "home/../f", text: "x"}, last},
		{begin, {name: "workspace/l", link: ".."}, {name: "workspace/l/f", text: "x"}, last},
		{{name: stateName, text: `{"repository":{}}`}, {name: "objects/blob/00", text: "x"}, last},
	} {
		text, err := gunzip(craft(f, entries...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var compressed bytes.Buffer
		w := gzip.NewWriter(&compressed)
		_, _ = w.Write(content)
		_ = w.Close()
		to := newSource(t)
		_, _ = apply(t.Context(), &compressed, Target{Source: to})
		beside, err := os.ReadDir(filepath.Dir(to.Workspace))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range beside {
			if entry.Name() != filepath.Base(to.Workspace) {
				t.Errorf("wrote %s", entry.Name())
			}
		}
	})
}
