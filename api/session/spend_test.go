package session_test

import (
	"crypto/ed25519"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

func TestParsedAmountsAreExactAndComputedAmountsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]session.Dollars{
		"0": 0, "1": session.Dollar, "0.000123": 123_000_000, "0.000000000001": 1, "2000": 2000 * session.Dollar,
		"9000000.5": 9_000_000*session.Dollar + session.Dollar/2,
	} {
		got, err := session.ParseDollars(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s is %d (%s), %v, want %d", text, got, got, err, want)
		}
	}
	if got, err := session.ParseDollars("9999999.999999999999"); err != nil || got != session.MaxDollars {
		t.Errorf("the largest amount is %s, %v", got, err)
	}
	for _, text := range []string{"", "-1", "1.", ".5", "1.2.3", "+1", "1_0", "1e3", "12345678",
		"0.0000000000001", "$1", " 1"} {
		if got, err := session.ParseDollars(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
	third, huge := big.NewRat(1, 3), new(big.Rat).SetInt64(1<<62)
	for _, c := range []struct {
		amount *big.Rat
		want   session.Dollars
	}{{third, 333_333_333_334}, {huge, session.MaxDollars}, {nil, 0}, {big.NewRat(-1, 2), 0}} {
		if got := session.DollarsOf(c.amount); got != c.want {
			t.Errorf("%v is %d, want %d", c.amount, got, c.want)
		}
	}
	if got := session.MaxDollars.Plus(1); got != session.MaxDollars {
		t.Errorf("the sum is %d", got)
	}
	if got := (session.MaxDollars / 2).Times(8); got != session.MaxDollars {
		t.Errorf("the product is %d", got)
	}
	for amount, want := range map[session.Dollars]string{50 * session.Dollar: "$50.00", 0: "$0.00",
		123_000_000: "$0.000123", 49_971_000_000_000: "$49.98"} {
		if got := amount.Cents(); got != want {
			t.Errorf("%s is shown as %s, want %s", amount, got, want)
		}
	}
}

func TestTheTokenOfASessionNamesThePersonWhoPays(t *testing.T) {
	t.Parallel()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := session.SpendClaims{Owner: "oidc:ada", Namespace: "team", Soft: 80,
		PerUser: session.SpendLimits{Month: 50 * session.Dollar}}
	sign := func(claims session.Claims) string {
		claims.UID, claims.Expires = "u", time.Now().Add(time.Minute).Unix()
		token, err := session.SignToken(key, claims)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	tokens := sign(session.Claims{Audience: session.AudienceAttempt, Attempt: 3}) + " " +
		sign(session.Claims{Audience: session.AudienceArchive, Attempt: 2, Spend: &want})
	claims, err := session.VerifyArchiveToken([]ed25519.PublicKey{public}, tokens, "u", time.Now())
	if err != nil || claims.Attempt != 3 || claims.Spend == nil || *claims.Spend != want {
		t.Errorf("the claims are %+v, %v", claims, err)
	}
	if read := session.ReadSpendClaims(tokens); read == nil || *read != want || read.Lowest() != 50*session.Dollar {
		t.Errorf("the session reads %+v", read)
	}
	old := sign(session.Claims{Audience: session.AudienceArchive, Attempt: 2})
	for _, token := range []string{old, "", "x", "x.y", sign(session.Claims{Audience: session.AudienceAttempt})} {
		if read := session.ReadSpendClaims(token); read.Lowest() != 0 || read != nil {
			t.Errorf("from %q the session reads %+v", token, read)
		}
	}
	text, err := json.Marshal(session.SpendClaims{Owner: "o", Namespace: "n"})
	if err != nil || string(text) != `{"owner":"o","namespace":"n"}` {
		t.Errorf("claims without limits are %s, %v", text, err)
	}
}

func TestARefusalContainsTheLimitAndTheCostsAndTheResetTime(t *testing.T) {
	t.Parallel()
	state := session.LimitState{Scope: session.ScopeUser, Period: session.PeriodMonth, Limit: 50 * session.Dollar,
		Spent: 49_980_000_000_000, Resets: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
	const want = "spending limit of $50.00 per month for this user is reached: $49.98 spent or reserved; " +
		"resets 2026-12-01T00:00:00Z"
	if got := state.Refusal(); got != want {
		t.Errorf("the refusal is %q", got)
	}
}
