package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestEachContenderRunsOnceInEachPosition(t *testing.T) {
	t.Parallel()
	all := contenders()
	had := map[string]map[int]int{}
	for turn := range all {
		for place, c := range rotate(all, turn) {
			if had[c.name] == nil {
				had[c.name] = map[int]int{}
			}
			had[c.name][place]++
		}
	}
	for name, places := range had {
		for place := range all {
			if places[place] != 1 {
				t.Errorf("%s has position %d %d times", name, place, places[place])
			}
		}
	}
}

func TestBurstsAreReportedWithMedianAndRange(t *testing.T) {
	t.Parallel()
	r := &report{}
	r.compareTurns("burst: some", "time", "s", []turns{
		{conversations, []float64{9, 2, 4}}, {barePods, []float64{1, 2, 3}}, {minimalObjects, []float64{5, 3}},
	})
	var table bytes.Buffer
	r.print(&table)
	for _, want := range []string{"Parley", "bare pods", "minimal objects", "4.00 (2.00–9.00)", "2.00 (1.00–3.00)",
		"4.00 (3.00–5.00)"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	text, err := json.Marshal(r.Figures)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"part":"burst: some","what":"time","unit":"s","parley":4,"range":[2,9],"beside":[` +
		`{"name":"bare pods","value":2,"range":[1,3],"ratio":2},` +
		`{"name":"minimal objects","value":4,"range":[3,5],"ratio":1}]}]`
	if string(text) != want {
		t.Errorf("the JSON is %s, want %s", text, want)
	}
}
