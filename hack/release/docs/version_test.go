package main

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/version"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestTheChartTheAPIAndTheChangelogHaveTheVersionOfThePrograms(t *testing.T) {
	text, err := os.ReadFile(testenv.Path("config", "chart", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	var api struct{ Info struct{ Version string } }
	if err := json.Unmarshal(rest.OpenAPI, &api); err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## (\S+)`).FindStringSubmatch(document(t, "changelog.md"))
	if newest == nil {
		t.Fatal("docs/changelog.md lists no version")
	}
	for place, found := range map[string]string{
		"version of the chart":                chart.Version,
		"appVersion of the chart":             chart.AppVersion,
		"info.version of openapi.yaml":        api.Info.Version,
		"newest version in docs/changelog.md": newest[1],
	} {
		if found != version.Parley {
			t.Errorf("the %s is %s, want %s", place, found, version.Parley)
		}
	}
}
