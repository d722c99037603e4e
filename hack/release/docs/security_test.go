package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
	"github.com/parley-dev/parley/hack/test/testlist"
)

var quoted = regexp.MustCompile("`([^`]+)`")

func TestEveryThreatRefersToExistingTests(t *testing.T) {
	_, section, _ := strings.Cut(document(t, "security.md"), "\n## Threats\n")
	section, _, _ = strings.Cut(section, "\n## ")
	tests, err := testlist.Find(testenv.Path())
	if err != nil || len(tests) < 1000 {
		t.Fatalf("found only %d tests: %v", len(tests), err)
	}
	exists := map[string]bool{}
	for _, test := range tests {
		exists[test.Name] = true
	}
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
