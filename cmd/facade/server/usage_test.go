package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
)

// paidCluster gives all UserSettings the same owner, unless the field owner is empty. The default
// class has spending limits.
type paidCluster struct {
	stubCluster
	owner string
}

func (c *paidCluster) UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	found, err := c.stubCluster.UsersByKeyHash(ctx, hash)
	for i := range found {
		if c.owner != "" {
			found[i].Spec.Owner = &v1alpha1.SettingsOwner{Username: c.owner}
		}
	}
	return found, err
}

func (c *paidCluster) Class(_ context.Context, name string) (*v1alpha1.SessionClassSpec, error) {
	if name != v1alpha1.DefaultSessionClass {
		return nil, errors.New("another class")
	}
	return &v1alpha1.SessionClassSpec{Spend: &v1alpha1.SpendingLimits{
		PerUser:      &v1alpha1.SpendingLimit{Day: ptr.To("4.50")},
		PerNamespace: &v1alpha1.SpendingLimit{Month: ptr.To("2000")}}}, nil
}

func TestUsersSeeOnlyTheirOwnCosts(t *testing.T) {
	const limits = `[{"scope":"user","period":"day","limit":"4.5","used":"1","resets":"2026-03-01T00:00:00Z"},` +
		`{"scope":"namespace","period":"month","limit":"2000","used":null,"resets":"2026-03-01T00:00:00Z"}]`
	for name, c := range map[string]struct {
		owner, query, asked, limits string
	}{
		"without an owner": {"", "", "1 ", limits},
		"an owner":         {"oidc:ada", "", "oidc:ada ", limits},
		"another user":     {"oidc:ada", "?owner=oidc:bob&namespace=team&month=2026-02", "oidc:ada 2026-02", limits},
		"another month":    {"", "?month=2026-01", "1 2026-01", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			asked, options := "", DefaultOptions()
			options.Usage = func(_ context.Context, owner, month string) (session.SpendUsage, error) {
				asked = owner + " " + month
				if month == "" {
					month = "2026-02"
				}
				return session.SpendUsage{Month: month, Day: "2026-02-28", UsedToday: session.Dollar,
					UsageTotals: session.UsageTotals{Spent: 2 * session.Dollar}}, nil
			}
			code, body := getUsage(t, &paidCluster{owner: c.owner}, options, c.query)
			if code != http.StatusOK || asked != c.asked || !strings.Contains(body, `"limits":`+c.limits) {
				t.Errorf("asked for %q, answered %d %s", asked, code, body)
			}
		})
	}
}

func TestTheUsageCallFailsWithoutTheArchive(t *testing.T) {
	away := func(context.Context, string, string) (session.SpendUsage, error) {
		return session.SpendUsage{}, errors.New("no route to the archive")
	}
	for _, c := range []struct {
		reader archiveclient.UsageReader
		query  string
		code   int
		says   string
	}{
		{nil, "", http.StatusNotFound, "costs are not recorded"},
		{away, "", http.StatusServiceUnavailable, "cannot be read now"},
		{away, "?month=2026-13", http.StatusUnprocessableEntity, `["query","month"]`},
	} {
		options := DefaultOptions()
		options.Usage = c.reader
		code, body := getUsage(t, &paidCluster{}, options, c.query)
		if code != c.code || !strings.Contains(body, c.says) || strings.Contains(body, "no route") {
			t.Errorf("%q: answered %d %s", c.query, code, body)
		}
	}
}

func getUsage(t *testing.T, c *paidCluster, options Options, query string) (code int, body string) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/usage"+query, http.NoBody)
	request.Header.Set(rest.KeyHeader, stubKey)
	response := httptest.NewRecorder()
	New(c, options, prometheus.NewRegistry()).ServeHTTP(response, request)
	return response.Code, response.Body.String()
}
