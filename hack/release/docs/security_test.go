package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// testFunctions returns the names of all tests and fuzz tests, in every module and for every build
// tag.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(testenv.Path(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || entry.Name() == "dist" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && isTest(f) {
				found[f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 1000 {
		t.Fatalf("found only %d tests", len(found))
	}
	return found
}

// isTest reports whether go test runs a function: TestX(*testing.T) or FuzzX(*testing.F).
func isTest(f *ast.FuncDecl) bool {
	if f.Recv != nil || len(f.Type.Params.List) != 1 {
		return false
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	selector, ok := pointer.X.(*ast.SelectorExpr)
	if !ok || nameOf(selector.X) != "testing" {
		return false
	}
	name := f.Name.Name
	return strings.HasPrefix(name, "Test") && selector.Sel.Name == "T" ||
		strings.HasPrefix(name, "Fuzz") && selector.Sel.Name == "F"
}

var quoted = regexp.MustCompile("`([^`]+)`")

func TestEveryThreatNamesTestsThatExist(t *testing.T) {
	_, section, _ := strings.Cut(document(t, "security.md"), "\n## Threats\n")
	section, _, _ = strings.Cut(section, "\n## ")
	exists := testFunctions(t)
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.TrimSpace(cells[0]) == "attacker" {
			continue
		}
		rows++
		if len(cells) != 4 {
			t.Errorf("this row has %d cells, want attacker, attack, defence and tests: %s", len(cells), line)
			continue
		}
		names := quoted.FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("%s: this row names no test", cells[1])
		}
		for _, name := range names {
			if !exists[name[1]] {
				t.Errorf("%s: there is no test %s", cells[1], name[1])
			}
		}
	}
	if rows < 30 {
		t.Errorf("found only %d rows", rows)
	}
}
