package tools

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxCompared limits the number of line comparisons in the search for similar text.
	maxCompared = 2_000_000
	// minSimilarity is the smallest similarity, from 0 to 1, of lines that notFound shows.
	minSimilarity = 0.6
)

// viewPrefix matches the line number that the view command puts before each line.
var viewPrefix = regexp.MustCompile(`(?m)^ *\d+\t`)

// notFound returns an error that says that old_str does not occur in the file. It shows the model
// the most similar lines, if there are any.
func notFound(content, old string) error {
	const unchanged = "old_str does not occur in the file; nothing was changed. "
	lines, wanted := splitLines(content), splitLines(strings.Trim(old, "\r\n"))
	if stripped := viewPrefix.ReplaceAllString(old, ""); stripped != old && strings.Contains(content, stripped) {
		return fmt.Errorf("%sold_str contains the line numbers that the command view prints: leave them out", unchanged)
	}
	first, similarity := nearest(lines, wanted)
	if similarity < minSimilarity {
		return fmt.Errorf("%sView the file and copy the text exactly, including whitespace", unchanged)
	}
	what := "The most similar lines are"
	if similarity == 1 {
		what = "These lines differ only in whitespace"
	}
	shown := Cut(numbered(lines[first:min(len(lines), first+len(wanted))], first+1), 4000)
	return fmt.Errorf("%s%s:\n%s\nCopy the text exactly, without the line numbers", unchanged, what, shown)
}

func splitLines(text string) []string {
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(text, "\r\n", "\n"), "\n"), "\n")
}

// nearest finds the lines that are most similar to the wanted lines. It returns the index of the
// first of these lines, and their similarity from 0 to 1. It ignores whitespace.
func nearest(lines, wanted []string) (first int, similarity float64) {
	words := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	lines, wanted = mapped(lines, words), mapped(wanted, words)
	if len(wanted) > len(lines) || len(wanted)*(len(lines)-len(wanted)+1) > maxCompared {
		return 0, 0
	}
	length := 0
	for _, line := range wanted {
		length += len(line) + 1
	}
	for i := range len(lines) - len(wanted) + 1 {
		common := 0
		for j, line := range wanted {
			common += commonLength(lines[i+j], line)
		}
		if s := float64(common) / float64(length); s > similarity {
			first, similarity = i, s
		}
	}
	return first, similarity
}

func mapped(lines []string, f func(string) string) []string {
	lines = slices.Clone(lines)
	for i := range lines {
		lines[i] = f(lines[i])
	}
	return lines
}

// commonLength measures the similarity of a file's line a to a wanted line b. It counts the
// characters of their common beginning and end, minus the characters by which a is longer than b.
// For equal lines, it also counts the line break.
func commonLength(a, b string) int {
	if a == b {
		return len(b) + 1
	}
	start, end := 0, 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return max(0, start+end-max(0, len(a)-len(b)))
}
