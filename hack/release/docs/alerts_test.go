package main

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/hack/test/testenv"
)

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

func TestAlertsUseExistingMetricsAndLinkARunbook(t *testing.T) {
	known := metricLookup(t)
	for _, rule := range alerts(t) {
		checkExpression(t, rule.Alert, rule.Expr, known)
		file, anchor, _ := strings.Cut(rule.Annotations["runbook"], "#")
		if !hasAnchor(document(t, strings.TrimPrefix(file, "docs/")), anchor) {
			t.Errorf("%s: no heading %s in %s", rule.Alert, anchor, file)
		}
		if !strings.Contains(document(t, "observability.md"), "`"+rule.Alert+"`") {
			t.Errorf("%s is not in docs/observability.md", rule.Alert)
		}
	}
}
