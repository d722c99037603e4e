package httpapi_test

import (
	"crypto/ed25519"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// sendAs sends a request with a token that has these claims.
func sendAs(t *testing.T, key ed25519.PrivateKey, claims session.Claims, method, url, body string) (code int,
	text string) {
	t.Helper()
	claims.Expires = time.Now().Add(time.Minute).Unix()
	token, err := session.SignToken(key, claims)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// A session cannot change its owner or its limits, because they are in its signed token.
func TestTheTokenDecidesWhoPays(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	pays := &session.SpendClaims{Owner: "oidc:ada", Namespace: "team",
		PerUser: session.SpendLimits{Month: session.Dollar}}
	today := time.Now().UTC().Format(session.DayForm)
	const ask = `{"sequence": 1, "need": "0.75", "want": "0.9", "owner": "bob", "perUser": {"month": "9"}}`
	for _, c := range []struct {
		claims session.Claims
		uid    string
		body   string
		code   int
		want   string
	}{
		{session.Claims{Audience: session.AudienceArchive, UID: "u"}, "u", ask, 422, "not a report"},
		{session.Claims{Audience: session.AudienceUsage, UID: "u", Spend: pays}, "u", ask, 401, ""},
		{session.Claims{Audience: session.AudienceArchive, UID: "v", Spend: pays}, "u", ask, 401, ""},
		{session.Claims{Audience: session.AudienceArchive, UID: "v"}, "v", ask, 410, ""},
		{session.Claims{Audience: session.AudienceArchive, UID: "u", Spend: pays}, "u", "[]", 422, "not a report"},
		{session.Claims{Audience: session.AudienceArchive, UID: "u", Spend: pays}, "u", ask, 200, `"reserved":"0.75"`},
		{session.Claims{Audience: session.AudienceArchive, UID: "u", Spend: pays, Attempt: 2}, "u",
			`{"sequence": 1, "need": "0.3"}`, 200, `"scope":"user","period":"month","limit":"1","spent":"0.75"`},
		{session.Claims{Audience: session.AudienceArchive, UID: "u", Spend: pays, Attempt: 1}, "u", ask, 403,
			"a later attempt"},
	} {
		url := address + session.ArchiveRoot + c.uid + session.ArchiveSpend
		code, text := sendAs(t, key, c.claims, http.MethodPost, url, c.body)
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%+v with %.40s gets %d %s, want %d %s", c.claims, c.body, code, text, c.code, c.want)
		}
	}
	usage, err := s.Usage(t.Context(), "oidc:ada", "", "")
	if err != nil || usage.Unsettled != 75*session.Dollar/100 || len(usage.Lines) != 1 || usage.Lines[0].Period != today {
		t.Errorf("the usage is %+v, %v", usage, err)
	}
}

func TestTheCostsOfADeletedConversationAreRecorded(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	claims := session.Claims{Audience: session.AudienceArchive, UID: "deleted", Attempt: 1,
		Spend: &session.SpendClaims{Owner: "ada", Namespace: "team"}}
	today := time.Now().UTC().Format(session.DayForm)
	code, text := sendAs(t, key, claims, http.MethodPost, address+session.ArchiveRoot+"deleted"+session.ArchiveSpend,
		`{"sequence": 1, "need": "2", "want": "3", "open": {"`+today+`": "1"},
		"spent": [{"period": "`+today+`", "model": "m", "cost": "0.5"}]}`)
	if code != http.StatusOK || !strings.Contains(text, `"reserved":"1"`) {
		t.Errorf("the report gets %d %s", code, text)
	}
	usage, err := s.Usage(t.Context(), "ada", "", "")
	if want := (session.UsageTotals{Spent: session.Dollar / 2, Reserved: session.Dollar}); err != nil ||
		usage.UsageTotals != want {
		t.Errorf("the usage is %+v, %v", usage, err)
	}
}

func TestOnlyTheFacadeMayReadUsage(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	today := time.Now().UTC().Format(session.DayForm)
	for _, owner := range []string{"ada", "bob"} {
		_, err := s.Spend(t.Context(), "u-"+owner, 1, session.SpendClaims{Owner: owner, Namespace: "team"},
			session.SpendReport{Sequence: 1, Spent: []session.SpentLine{{Period: today, Model: "m", Calls: 2, Input: 3,
				Output: 4, Cost: session.Dollar / 4}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	facade := session.Claims{Audience: session.AudienceUsage, UID: session.UsageSubject}
	for _, c := range []struct {
		claims session.Claims
		query  string
		want   int
	}{
		{facade, "?owner=ada", 200}, {facade, "", 422}, {facade, "?owner=ada&month=2026", 422},
		{facade, "?namespace=..", 422}, {facade, "?namespace=none", 200},
		{session.Claims{Audience: session.AudienceUsage, UID: "u"}, "?owner=ada", 401},
		{session.Claims{Audience: session.AudienceArchive, UID: session.UsageSubject}, "?owner=ada", 401},
	} {
		if code, text := sendAs(t, key, c.claims, http.MethodGet, address+session.ArchiveUsage+c.query, ""); code != c.want {
			t.Errorf("%+v with %s gets %d %s, want %d", c.claims, c.query, code, text, c.want)
		}
	}
	_, text := sendAs(t, key, facade, http.MethodGet, address+session.ArchiveUsage+"?namespace=team", "")
	var usage session.SpendUsage
	if err := json.Unmarshal([]byte(text), &usage); err != nil || usage.Spent != session.Dollar/2 ||
		len(usage.Owners) != 2 || usage.Owners[0].Owner != "ada" || usage.Owners[1].Spent != session.Dollar/4 ||
		len(usage.Lines) != 1 || usage.Lines[0].Calls != 4 || usage.Lines[0].Namespace != "team" {
		t.Errorf("the usage of the namespace is %s, %v", text, err)
	}
}

func metric(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			found := map[string]string{}
			for _, label := range m.GetLabel() {
				found[label.GetName()] = label.GetValue()
			}
			if family.GetName() == name && maps.Equal(found, labels) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// The report is sent twice, as after a lost answer, but counts one time.
func TestMetricsShowCostsAndRefusalsByNamespace(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	claims := session.Claims{Audience: session.AudienceArchive, UID: "u", Attempt: 1, Spend: &session.SpendClaims{
		Owner: "metrics-owner", Namespace: "metrics-team", PerUser: session.SpendLimits{Day: session.Dollar}}}
	today := time.Now().UTC().Format(session.DayForm)
	spent := `"spent": [{"period": "` + today + `", "model": "m", "calls": 1, "cost": "0.75"}]`
	for _, body := range []string{`{"sequence": 1, ` + spent + `}`, `{"sequence": 1, ` + spent + `}`,
		`{"sequence": 2, "need": "0.5", "want": "0.5"}`, `{"sequence": 3, "need": "0.125", "want": "0.125"}`} {
		if code, text := sendAs(t, key, claims, http.MethodPost, address+session.ArchiveRoot+"u"+session.ArchiveSpend,
			body); code != http.StatusOK {
			t.Fatalf("%s: %d %s", body, code, text)
		}
	}
	team := map[string]string{"session_namespace": "metrics-team"}
	if got := metric(t, "parley_archive_spent_dollars_total", team); got != 0.75 {
		t.Errorf("%v dollars are spent", got)
	}
	team["scope"], team["period"] = session.ScopeUser, session.PeriodDay
	if got := metric(t, "parley_archive_spend_refused_total", team); got != 1 {
		t.Errorf("%v reservations are refused", got)
	}
	usage, err := s.Usage(t.Context(), "metrics-owner", "", "")
	if err != nil || usage.Day != today || usage.UsedToday != session.Dollar*7/8 {
		t.Errorf("the usage is %+v, %v", usage, err)
	}
}

// A report can also reserve the cost of a model call. The model call waits for the answer to this
// report, so reports must not wait for uploads.
func TestReportsOfCostsDoNotWaitForUploads(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "u-0 u-1")
	if got := stallUpload(t, address, key, "u-0"); got != "100" {
		t.Fatalf("the upload gets %s", got)
	}
	claims := session.Claims{Audience: session.AudienceArchive, UID: "u-1",
		Spend: &session.SpendClaims{Owner: "ada", Namespace: "team"}}
	url := address + session.ArchiveRoot + "u-1" + session.ArchiveSpend
	if code, text := sendAs(t, key, claims, http.MethodPost, url, `{"sequence": 1}`); code != http.StatusOK {
		t.Errorf("a report during the upload gets %d %s", code, text)
	}
	large := `{"sequence": 2, "spent": [` + strings.Repeat(" ", 1<<20) + `]}`
	if code, text := sendAs(t, key, claims, http.MethodPost, url, large); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large report gets %d %s", code, text)
	}
}

// A session must not keep the archive busy with reports.
func TestReportsOfCostsAreRateLimited(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "u")
	claims := session.Claims{Audience: session.AudienceArchive, UID: "u",
		Spend: &session.SpendClaims{Owner: "ada", Namespace: "team"}}
	for range 10000 {
		code, text := sendAs(t, key, claims, http.MethodPost, address+session.ArchiveRoot+"u"+session.ArchiveSpend,
			`{"sequence": -1}`)
		switch code {
		case http.StatusTooManyRequests:
			return
		case http.StatusUnprocessableEntity:
		default:
			t.Fatalf("a report gets %d %s", code, text)
		}
	}
	t.Error("10000 reports in a row are accepted")
}
