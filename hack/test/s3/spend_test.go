package s3_test

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// Two replicas share a bucket. The connection breaks at random, before or after the server handles
// a request.
func TestSpendingLimitsAreEnforcedIfTheLedgerIsInABucket(t *testing.T) {
	s3 := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dice := rand.Float64()
		if dice < 0.01 {
			panic(http.ErrAbortHandler)
		}
		if strings.Contains(r.URL.Path, "_ledger") && dice < 0.03 {
			w = httptest.NewRecorder()
			defer func() { panic(http.ErrAbortHandler) }()
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	address := at(t, "archive", server.URL)
	for name, claims := range map[string]session.SpendClaims{
		"user":      {PerUser: session.SpendLimits{Month: session.Dollar}},
		"namespace": {PerNamespace: session.SpendLimits{Day: session.Dollar, Month: session.Dollar * 3 / 2}},
	} {
		t.Run(name, func(t *testing.T) {
			stores := []archivetest.Store{archivetest.Open(t, address), archivetest.Open(t, address)}
			claims.Namespace = "team-" + name
			owners := []string{"ada"}
			if name == "namespace" {
				owners = []string{"zoe", "bob", "eve"}
			}
			archivetest.TestSpend(t, stores, claims, owners...)
		})
	}
}
