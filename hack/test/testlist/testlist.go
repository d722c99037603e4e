// Package testlist lists the tests in the repository's source, of all modules and build tags.
package testlist

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
)

// Test is a function TestX(*testing.T) or FuzzX(*testing.F).
type Test struct {
	Name string
	Dir  string // directory of the package
}

// Find returns the tests in a directory and its subdirectories.
func Find(root string) (tests []Test, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name() == "bin" || entry.Name() == "dist" ||
			strings.HasPrefix(entry.Name(), ".")):
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
				tests = append(tests, Test{f.Name.Name, filepath.Dir(path)})
			}
		}
		return nil
	})
	return tests, err
}

func isTest(f *ast.FuncDecl) bool {
	if f.Recv != nil || len(f.Type.Params.List) != 1 {
		return false
	}
	pointer, _ := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if pointer == nil {
		return false
	}
	selector, _ := pointer.X.(*ast.SelectorExpr)
	if selector == nil {
		return false
	}
	of, _ := selector.X.(*ast.Ident)
	name, kind := f.Name.Name, selector.Sel.Name
	return of != nil && of.Name == "testing" &&
		(strings.HasPrefix(name, "Test") && kind == "T" || strings.HasPrefix(name, "Fuzz") && kind == "F")
}
