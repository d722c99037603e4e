package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// guides returns the text of README.md, CONTRIBUTING.md and each document in docs/.
func guides(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(testenv.Path("docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, file := range append(files, testenv.Path("README.md"), testenv.Path("CONTRIBUTING.md")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[file] = string(text)
	}
	return found
}

var (
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code = regexp.MustCompile("`[^`\n]*`")
)

func TestLinkTargetsExist(t *testing.T) {
	all := guides(t)
	for file, text := range all {
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			path, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the target of %s does not exist", filepath.Base(file), match[1])
			} else if anchor != "" && !hasAnchor(all[target], anchor) {
				t.Errorf("%s: the target of %s has no such heading", filepath.Base(file), match[1])
			}
		}
	}
}

func hasAnchor(text, anchor string) bool {
	if anchor == "" {
		return true
	}
	for line := range strings.Lines(text) {
		heading, found := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !found || !strings.HasPrefix(line, "#") {
			continue
		}
		plain := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(heading)))
		if plain == anchor {
			return true
		}
	}
	return false
}

func TestEveryDocumentIsListedInTheREADME(t *testing.T) {
	all := guides(t)
	for file := range all {
		if name := "docs/" + filepath.Base(file); strings.Contains(file, "/docs/") &&
			!strings.Contains(all[testenv.Path("README.md")], name) {
			t.Errorf("the README does not name %s", name)
		}
	}
}

func TestTroubleshootingListsEveryReason(t *testing.T) {
	text := document(t, "operations.md")
	_, text, _ = strings.Cut(text, "## Troubleshooting by reason")
	for name, reason := range reasons(t) {
		if !strings.Contains(text, "| `"+reason+"` |") {
			t.Errorf("%s (%s) is not in docs/operations.md", name, reason)
		}
	}
}
