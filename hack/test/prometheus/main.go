// Command prometheus runs the tests of alerts, in the form that promtool has for them, with
// Prometheus' own engine. It reads them from standard input and writes what is wrong, if anything,
// to standard output, a line each.
//
// It is a module of its own: what the engine depends on is no business of the product.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
	"sigs.k8s.io/yaml"
)

// rule is what a test needs of an alert.
type rule struct {
	Alert string `json:"alert"`
	Expr  string `json:"expr"`
	For   string `json:"for"`
}

type input struct {
	Rules []rule `json:"rules"`
	Tests []test `json:"tests"`
}

type test struct {
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

// interval of the samples, and of the looks at a rule.
const interval = time.Minute

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	var in input
	if err := yaml.UnmarshalStrict(text, &in); err != nil {
		log.Fatalf("read the tests: %v", err)
	}
	rules := map[string]rule{}
	for _, r := range in.Rules {
		if _, err := parser.ParseExpr(r.Expr); err != nil {
			fmt.Printf("%s: %v\n", r.Alert, err)
		}
		rules[r.Alert] = r
	}
	for _, t := range in.Tests {
		if err := t.run(rules); err != nil {
			log.Fatalf("%s: %v", t.Name, err)
		}
	}
}

// run fills a database with the series of a test, and looks at the alerts at the times that it
// names.
func (t test) run(rules map[string]rule) error {
	dir, err := os.MkdirTemp("", "prometheus-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	options := tsdb.DefaultOptions()
	options.RetentionDuration = 0
	db, err := tsdb.Open(dir, nil, nil, options, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := t.fill(db); err != nil {
		return err
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute,
		LookbackDelta: 5 * time.Minute})
	for _, check := range t.AlertRuleTest {
		r, found := rules[check.Alert]
		if !found {
			return fmt.Errorf("there is no alert %s", check.Alert)
		}
		at, err := time.ParseDuration(check.EvalTime)
		if err != nil {
			return err
		}
		fires, err := r.fires(engine, db, at)
		if err != nil {
			return err
		}
		if fires != check.Fires {
			fmt.Printf("%s: %s fires at %s: %t, want %t\n", t.Name, r.Alert, check.EvalTime, fires, check.Fires)
		}
	}
	return nil
}

func (t test) fill(db *tsdb.DB) error {
	appender := db.Appender(context.Background())
	for _, series := range t.InputSeries {
		metric, values, err := parser.ParseSeriesDesc(series.Series + " " + series.Values)
		if err != nil {
			return err
		}
		for i, v := range values {
			if v.Omitted {
				continue
			}
			if _, err := appender.Append(0, metric, int64(i)*interval.Milliseconds(), v.Value); err != nil {
				return err
			}
		}
	}
	return appender.Commit()
}

// fires reports whether the alert has held for as long as it must, at each look until then.
func (r rule) fires(engine *promql.Engine, db *tsdb.DB, at time.Duration) (bool, error) {
	hold, err := time.ParseDuration(r.For)
	if err != nil {
		return false, err
	}
	for look := at - hold; look <= at; look += interval {
		query, err := engine.NewInstantQuery(context.Background(), db, nil, r.Expr, time.UnixMilli(look.Milliseconds()))
		if err != nil {
			return false, err
		}
		result := query.Exec(context.Background())
		if result.Err != nil {
			return false, result.Err
		}
		vector, err := result.Vector()
		if err != nil || len(vector) == 0 {
			return false, err
		}
	}
	return true, nil
}
