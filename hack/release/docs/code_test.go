package main

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
)

var update = flag.Bool("update", false, "rewrite the generated texts")

// sources parses the source files of Parley's programs, without tests.
func sources(t *testing.T) (files []*ast.File) {
	t.Helper()
	for _, dir := range []string{"api", "cmd", "controllers", "webhook"} {
		err := filepath.WalkDir(testenv.Path(dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			files = append(files, file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func calls(t *testing.T, names ...string) (found []*ast.CallExpr) {
	t.Helper()
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	for _, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if ok && wanted[nameOf(call.Fun)] {
				found = append(found, call)
			}
			return true
		})
	}
	return found
}

// nameOf returns "Name" for the expressions Name and x.Name.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// literal returns the value of a string literal. For any other expression, it returns an empty
// string.
func literal(e ast.Expr) string {
	if basic, ok := e.(*ast.BasicLit); ok && basic.Kind == token.STRING {
		text, _ := strconv.Unquote(basic.Value)
		return text
	}
	return ""
}

// reasons maps the name of each constant for a condition reason to the constant's value.
func reasons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, file := range sources(t) {
		if file.Name.Name != "v1alpha1" {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Reason") && len(spec.Values) == 1 {
				found[spec.Names[0].Name] = literal(spec.Values[0])
			}
			return true
		})
	}
	if len(found) < 30 {
		t.Fatalf("found only %d reasons", len(found))
	}
	return found
}

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(testenv.Path("docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
