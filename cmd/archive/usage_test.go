package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestTheArchivePrintsTheCostsOfANamespace(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	for owner, namespace := range map[string]string{"ada": "team", "bob": "team", "eve": "other"} {
		_, err := s.Spend(t.Context(), "u-"+owner, 1, session.SpendClaims{Owner: owner, Namespace: namespace},
			session.SpendReport{Sequence: 1, Spent: []session.SpentLine{{Period: time.Now().UTC().Format(session.DayForm),
				Model: "m", Calls: 1, Cost: session.Dollar}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := printUsage(t.Context(), options{store: address, usage: "team"}, &out); err != nil {
		t.Fatal(err)
	}
	var usage session.SpendUsage
	if err := json.Unmarshal(out.Bytes(), &usage); err != nil || usage.Spent != 2*session.Dollar ||
		len(usage.Owners) != 2 {
		t.Errorf("printed %s, %v", &out, err)
	}
	for _, o := range []options{{store: address, usage: ".."}, {store: address, usage: "team", month: "now"},
		{store: "nowhere", usage: "team"}} {
		if err := printUsage(t.Context(), o, &out); err == nil {
			t.Errorf("%+v causes no error", o)
		}
	}
}
