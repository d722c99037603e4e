package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// alert is what a rule of Prometheus says.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func alerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(testenv.Path("config", "prometheus", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []alert `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	return rules.Spec.Groups[0].Rules
}

func TestAlertsAskForMetricsThatExistAndNameADocument(t *testing.T) {
	known := known(t)
	for _, rule := range alerts(t) {
		checkExpression(t, rule.Alert, rule.Expr, known)
		file, anchor, _ := strings.Cut(rule.Annotations["runbook"], "#")
		if !hasAnchor(document(t, strings.TrimPrefix(file, "docs/")), anchor) {
			t.Errorf("%s: there is no %s in %s", rule.Alert, anchor, file)
		}
		if !strings.Contains(document(t, "observability.md"), "`"+rule.Alert+"`") {
			t.Errorf("%s is not in docs/observability.md", rule.Alert)
		}
	}
}

// Prometheus' own engine, which is in the module hack/test/prometheus, says when they fire.
func TestAlertsFireWhenTheyShouldAndNotElse(t *testing.T) {
	tests, err := os.ReadFile(filepath.Join("testdata", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	question := map[string]any{}
	if err := yaml.Unmarshal(tests, &question); err != nil {
		t.Fatal(err)
	}
	var rules []alert
	for _, rule := range alerts(t) {
		if !strings.Contains(string(tests), "alertname: "+rule.Alert+", fires: true") || !strings.Contains(string(tests),
			"alertname: "+rule.Alert+", fires: false") {
			t.Errorf("%s is not tested both ways", rule.Alert)
		}
		rule.Annotations = nil
		rules = append(rules, rule)
	}
	question["rules"] = rules
	text, err := yaml.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	engine := exec.CommandContext(t.Context(), "go", "run", ".")
	engine.Dir = testenv.Path("hack", "test", "prometheus")
	engine.Env = append(os.Environ(), "CGO_ENABLED=0")
	engine.Stdin, engine.Stderr = bytes.NewReader(text), os.Stderr
	output, err := engine.Output()
	if err != nil || len(output) > 0 {
		t.Errorf("%v\n%s", err, output)
	}
}
