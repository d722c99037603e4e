package prometheus

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"sigs.k8s.io/yaml"
)

// interval is the time between two samples, and between two evaluations of a rule.
const interval = time.Minute

type alert struct {
	Alert string `json:"alert"`
	Expr  string `json:"expr"`
	For   string `json:"for"`
}

// alertTest is like a unit test of promtool, but only says whether an alert fires.
type alertTest struct {
	Name        string `json:"name"`
	InputSeries []struct {
		Series string `json:"series"`
		Values string `json:"values"`
	} `json:"input_series"`
	AlertRuleTest []struct {
		EvalTime string `json:"eval_time"`
		Alert    string `json:"alertname"`
		Fires    bool   `json:"fires"`
	} `json:"alert_rule_test"`
}

func read(t *testing.T, file string, into any, strict ...yaml.JSONOpt) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into, strict...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAlertsFireOnlyWhenTheyShould(t *testing.T) {
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []alert `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	read(t, "../../../config/prometheus/rules.yaml", &rules)
	var tests struct {
		Tests []alertTest `json:"tests"`
	}
	text := read(t, "testdata/alerts.yaml", &tests, yaml.DisallowUnknownFields)
	alerts := map[string]alert{}
	for _, a := range rules.Spec.Groups[0].Rules {
		alerts[a.Alert] = a
		for _, fires := range []string{"true", "false"} {
			if !strings.Contains(text, "alertname: "+a.Alert+", fires: "+fires) {
				t.Errorf("%s lacks a test that fires or one that does not", a.Alert)
			}
		}
	}
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	for _, test := range tests.Tests {
		load := "load 1m\n"
		for _, series := range test.InputSeries {
			load += "  " + series.Series + " " + series.Values + "\n"
		}
		db := promqltest.LoadedStorage(t, load)
		for _, check := range test.AlertRuleTest {
			a, found := alerts[check.Alert]
			if !found {
				t.Fatalf("%s: alert %s does not exist", test.Name, check.Alert)
			}
			if fires := a.fires(t, engine, db, duration(t, check.EvalTime)); fires != check.Fires {
				t.Errorf("%s: %s fires at %s: %t, want %t", test.Name, a.Alert, check.EvalTime, fires, check.Fires)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fires reports whether the expression was true at every evaluation for the alert's whole duration.
func (a alert) fires(t *testing.T, engine *promql.Engine, db storage.Queryable, at time.Duration) bool {
	t.Helper()
	for look := at - duration(t, a.For); look <= at; look += interval {
		query, err := engine.NewInstantQuery(t.Context(), db, nil, a.Expr, time.UnixMilli(look.Milliseconds()))
		if err != nil {
			t.Fatalf("%s: %v", a.Alert, err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", a.Alert, err)
		}
		if len(vector) == 0 {
			return false
		}
	}
	return true
}
