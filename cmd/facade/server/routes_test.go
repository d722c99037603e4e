package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// The list open contains the calls that need no authentication.
var open = []string{
	"GET /alive", "GET /health", "GET /ready", "GET /openapi.json", "GET /api/options/config",
	"POST /api/signin", "POST /api/signout", "GET /api/session", "GET /api/signin/options", "GET /api/signin/oidc",
	"GET /api/signin/callback", "POST /api/session/settings",
}

func calls() []string {
	all := slices.Clone(open)
	for path, operations := range New(&stubCluster{}, DefaultOptions(), prometheus.NewRegistry()).server.operations() {
		for method := range operations {
			all = append(all, method+" "+path)
		}
	}
	slices.Sort(all)
	return all
}

func TestTheOpenAPIDocumentDescribesExactlyTheServedCalls(t *testing.T) {
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(rest.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	var documented []string
	for path, operations := range document.Paths {
		for method := range operations {
			if method != "parameters" {
				documented = append(documented, strings.ToUpper(method)+" "+path)
			}
		}
	}
	slices.Sort(documented)
	served := calls()
	for _, call := range served {
		if !slices.Contains(documented, call) {
			t.Errorf("%s is served and not in openapi.yaml", call)
		}
	}
	for _, call := range documented {
		if !slices.Contains(served, call) {
			t.Errorf("%s is in openapi.yaml and not served", call)
		}
	}
}

func TestTheHTTPGuideDocumentsEveryCall(t *testing.T) {
	text, err := os.ReadFile(testenv.Path("docs", "http.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Every call")
	for _, call := range calls() {
		if !strings.Contains(table, "| `"+call+"` |") {
			t.Errorf("%s is not in docs/http.md", call)
		}
	}
}

func TestAllowedOriginsMayMakeEveryCall(t *testing.T) {
	options := DefaultOptions()
	options.CORSOrigins = []string{"https://example.com"}
	handler := New(&stubCluster{}, options, prometheus.NewRegistry())
	for _, call := range calls() {
		method, path, _ := strings.Cut(call, " ")
		r := httptest.NewRequest(http.MethodOptions, path, http.NoBody)
		r.Header.Set("Origin", "https://example.com")
		r.Header.Set("Access-Control-Request-Method", method)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if allowed := strings.Split(w.Header().Get("Access-Control-Allow-Methods"), ", "); !slices.Contains(allowed, method) {
			t.Errorf("%s: allowed are %v", call, allowed)
		}
		allowed := strings.Split(w.Header().Get("Access-Control-Allow-Headers"), ", ")
		for _, header := range []string{rest.KeyHeader, "Content-Type", "Idempotency-Key", "Last-Event-ID",
			"Authorization", rest.SettingsHeader} {
			if !slices.Contains(allowed, header) {
				t.Errorf("%s: allowed are %v", call, allowed)
			}
		}
	}
}
