package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
)

type metric struct {
	kind, help string
	labels     []string
}

var metricKinds = map[string]string{
	"NewCounter": "counter", "NewCounterVec": "counter", "NewHistogram": "histogram", "NewHistogramVec": "histogram",
	"NewGauge": "gauge", "NewGaugeVec": "gauge", "NewGaugeFunc": "gauge", "NewDesc": "gauge",
}

func metrics(t *testing.T) map[string]metric {
	t.Helper()
	found := map[string]metric{}
	for _, call := range calls(t, slices.Collect(maps.Keys(metricKinds))...) {
		m := metric{kind: metricKinds[nameOf(call.Fun)]}
		name := literal(call.Args[0])
		if options, ok := call.Args[0].(*ast.CompositeLit); ok {
			for _, e := range options.Elts {
				switch field := e.(*ast.KeyValueExpr); nameOf(field.Key) {
				case "Name":
					name = literal(field.Value)
				case "Help":
					m.help = literal(field.Value)
				}
			}
		} else {
			m.help = literal(call.Args[1])
		}
		for _, argument := range call.Args[1:] {
			if labels, ok := argument.(*ast.CompositeLit); ok {
				for _, label := range labels.Elts {
					m.labels = append(m.labels, literal(label))
				}
			}
		}
		if !strings.HasPrefix(name, "parley_") || m.help == "" {
			t.Errorf("could not read the declaration of %s %q", name, m.help)
		}
		found[name] = m
	}
	return found
}

func TestTheTableOfMetricsMatchesTheCode(t *testing.T) {
	rows := &strings.Builder{}
	all := metrics(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		fmt.Fprintf(rows, "| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(m.labels, ", "), m.help)
	}
	file := testenv.Path("docs", "observability.md")
	const head = "| metric | kind | labels | |\n|---|---|---|---|\n"
	before, rest, found := strings.Cut(document(t, "observability.md"), head)
	if !found {
		t.Fatal("the table of metrics is missing")
	}
	_, after, _ := strings.Cut(rest, "\n\n")
	text := before + head + rows.String() + "\n" + after
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if document(t, "observability.md") != text {
		t.Error("docs/observability.md is not up to date: run go test ./hack/release/docs -update")
	}
}

// inExpression matches the names of metrics in a PromQL expression. It recognizes them by their
// prefixes.
var inExpression = regexp.MustCompile(`\b(parley|controller_runtime|workqueue|process|go|rest_client)_[a-z_]+`)

// metricLookup returns a function that looks up a metric in Parley's source and in its libraries.
func metricLookup(t *testing.T) func(name string) (labels []string, exists bool) {
	t.Helper()
	own := metrics(t)
	libraries := &strings.Builder{}
	for module, dir := range map[string]string{"sigs.k8s.io/controller-runtime": "pkg/internal/metrics",
		"github.com/prometheus/client_golang": "prometheus"} {
		output, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{dir, "pkg/internal/controller/metrics", "pkg/metrics"} {
			files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(output)), dir, "*.go"))
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				libraries.Write(text)
			}
		}
	}
	source := libraries.String()
	return func(name string) ([]string, bool) {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			base, cut := strings.CutSuffix(name, suffix)
			m, found := own[base]
			if found && cut && (suffix == "" || m.kind == "histogram") {
				return m.labels, true
			}
		}
		if strings.HasPrefix(name, "parley_") {
			return nil, false
		}
		_, short, _ := strings.Cut(name, "_") // workqueue_depth is declared as Subsystem and Name
		return nil, strings.Contains(source, `"`+name+`"`) || strings.Contains(source, `"`+short+`"`)
	}
}

var (
	// selector matches a metric with its label matchers. label matches one label matcher.
	selector = regexp.MustCompile(`([a-z_]+)\{([^}]*)\}`)
	label    = regexp.MustCompile(`([a-z_]+)\s*(?:=|!=|=~|!~)"`)
	grouping = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
)

// checkExpression checks that all metrics in an expression exist. For Parley's own metrics it also
// checks the labels.
func checkExpression(t *testing.T, where, expression string, known func(string) ([]string, bool)) {
	t.Helper()
	names := inExpression.FindAllString(expression, -1)
	if len(names) == 0 {
		t.Errorf("%s uses no metric: %s", where, expression)
	}
	own, all := true, []string{"le"}
	for _, name := range names {
		labels, exists := known(name)
		if !exists {
			t.Errorf("%s: metric %s does not exist", where, name)
		}
		own, all = own && strings.HasPrefix(name, "parley_"), append(all, labels...)
	}
	for _, match := range selector.FindAllStringSubmatch(expression, -1) {
		labels, _ := known(match[1])
		for _, asked := range label.FindAllStringSubmatch(match[2], -1) {
			if strings.HasPrefix(match[1], "parley_") && !slices.Contains(labels, asked[1]) {
				t.Errorf("%s: %s has no label %s", where, match[1], asked[1])
			}
		}
	}
	for _, match := range grouping.FindAllStringSubmatch(expression, -1) {
		for by := range strings.SplitSeq(match[1], ", ") {
			if own && !slices.Contains(all, by) {
				t.Errorf("%s: no metric has a label %s", where, by)
			}
		}
	}
}

func TestTheDashboardUsesExistingMetrics(t *testing.T) {
	text, err := os.ReadFile(testenv.Path("config", "grafana", "parley.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	known, shown := metricLookup(t), &strings.Builder{}
	for _, panel := range dashboard.Panels {
		if len(panel.Targets) == 0 {
			t.Errorf("panel %s has no query", panel.Title)
		}
		for _, target := range panel.Targets {
			checkExpression(t, panel.Title, target.Expr, known)
			shown.WriteString(target.Expr)
		}
	}
	for name := range metrics(t) {
		if !strings.Contains(shown.String(), name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

func TestTheTableOfEventsMatchesTheCode(t *testing.T) {
	text := document(t, "observability.md")
	values := reasons(t)
	for _, call := range calls(t, "Eventf", "warn") {
		// The last arguments of Eventf and warn are the reason, the action, the note and the note's
		// values. Search backwards for the action: unlike the note, it has no space and no %.
		for i := len(call.Args) - 1; i > 0; i-- {
			action := literal(call.Args[i])
			if action == "" || strings.Contains(action, " ") || strings.Contains(action, "%") {
				continue
			}
			reason := literal(call.Args[i-1])
			if value := values[nameOf(call.Args[i-1])]; value != "" {
				reason = value
			}
			if !strings.Contains(text, "| "+action+" |") || reason != "" && !strings.Contains(text, "`"+reason+"`") {
				t.Errorf("the table lacks %s, %s", reason, action)
			}
			break
		}
	}
}
