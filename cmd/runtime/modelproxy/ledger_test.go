package modelproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

const cent = session.Dollar / 100

// bank is an archive with a ledger.
type bank struct {
	archivetest.Store
	clock  archivetest.Clock
	claims session.SpendClaims
	// If away is set, reports fail. If lost is set, the ledger records reports, but their answers
	// are lost.
	away, lost atomic.Bool
	reports    atomic.Int64
}

func newBank(t testing.TB, limits session.SpendLimits) *bank {
	t.Helper()
	b := &bank{Store: archivetest.Open(t, archivetest.InDirectory(t)),
		claims: session.SpendClaims{Owner: "ada", Namespace: "team", PerUser: limits}}
	b.clock.Set(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	b.Now = b.clock.LaggingClock(0)
	return b
}

func (b *bank) ledger(uid string, attempt int) modelproxy.Ledger {
	return func(ctx context.Context, report session.SpendReport) (grant session.SpendGrant, err error) {
		b.reports.Add(1)
		if b.away.Load() {
			return grant, errors.New("the archive is away")
		}
		grant, err = b.Spend(ctx, uid, attempt, b.claims, report)
		if b.lost.Load() {
			return session.SpendGrant{}, errors.New("the answer is lost")
		}
		return grant, err
	}
}

func (b *bank) limited(uid string) func(*modelproxy.Options) {
	return func(o *modelproxy.Options) {
		o.Ledger, o.Limit, o.ReserveTimeout = b.ledger(uid, 1), b.claims.Lowest(), 2*time.Second
	}
}

func (b *bank) usage(t testing.TB) session.SpendUsage {
	t.Helper()
	usage, err := b.Usage(context.Background(), "ada", "", b.Now().UTC().Format(session.MonthForm))
	if err != nil {
		t.Fatal(err)
	}
	return usage
}

func (b *bank) spentEventually(t *testing.T, want session.UsageTotals) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the ledger has %+v", b.usage(t).UsageTotals)
		}
	}()
	eventually(t, fmt.Sprintf("the ledger has %+v", want), func() bool { return b.usage(t).UsageTotals == want })
}

// spendWires contains a request for each API. limited is the part of the request that limits the
// output. answer is the response, with placeholders for the input and output tokens. field reads
// the output limit from a request.
var spendWires = map[string]struct {
	path, request, limited, answer string
	field                          func(body map[string]any) float64
}{
	"messages": {"/v1/messages", `{"model":"claude","messages":[{"role":"user","content":"hi"}]%s}`,
		`,"max_tokens":1000`, `{"usage":{"input_tokens":%d,"output_tokens":%d}}`,
		func(b map[string]any) float64 { return b["max_tokens"].(float64) }},
	"chat": {"/v1/chat/completions", `{"model":"claude","messages":[{"role":"user","content":"hi"}]%s}`,
		`,"max_tokens":500,"n":2`, `{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`,
		func(b map[string]any) float64 {
			choices, _ := b["n"].(float64)
			return b["max_tokens"].(float64) * max(1, choices)
		}},
	"responses": {"/v1/responses", `{"model":"claude","input":"hi"%s}`, `,"max_output_tokens":1000`,
		`{"usage":{"input_tokens":%d,"output_tokens":%d}}`,
		func(b map[string]any) float64 { return b["max_output_tokens"].(float64) }},
	"google": {"/v1beta/models/claude:generateContent", `{"contents":[{"parts":[{"text":"hi"}]}]%s}`,
		`,"generationConfig":{"max_output_tokens":500,"candidateCount":2}`,
		`{"usageMetadata":{"promptTokenCount":%d,"candidatesTokenCount":%d}}`,
		func(b map[string]any) float64 {
			config := b["generationConfig"].(map[string]any)
			choices, _ := config["candidateCount"].(float64)
			return config["maxOutputTokens"].(float64) * max(1, choices)
		}},
}

// The endpoint charges one token for each byte of the request and as many output tokens as the
// request allows. The reservation must cover this cost.
func TestTheReservationIsAnUpperBoundOfTheCost(t *testing.T) {
	t.Parallel()
	for name, wire := range spendWires {
		for _, given := range []string{"", wire.limited} {
			t.Run(fmt.Sprintf("%s %t", name, given != ""), func(t *testing.T) {
				t.Parallel()
				bank := newBank(t, session.SpendLimits{Month: 2 * session.Dollar})
				var want, reserved session.Dollars
				up := newUpstream(t, nil)
				up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					text, _ := io.ReadAll(r.Body)
					body := map[string]any{}
					if err := json.Unmarshal(text, &body); err != nil {
						t.Error(err)
					}
					output := wire.field(body)
					if given != "" && output != 1000 || given == "" && output != 32768 {
						t.Errorf("the endpoint may send %v tokens", output)
					}
					cost := new(big.Rat).Add(big.NewRat(int64(len(text))*3, 1e6), big.NewRat(int64(output)*15, 1e6))
					want, reserved = session.DollarsOf(cost), bank.usage(t).Reserved
					answerJSON(fmt.Sprintf(wire.answer, len(text), int64(output)))(w, r)
				})
				s := serve(t, up.URL, bank.limited("u"))
				s.must(t, wire.path, fmt.Sprintf(wire.request, given))
				if reserved < want {
					t.Errorf("%s are reserved for a cost of %s", reserved, want)
				}
				if err := s.Finish(t.Context()); err != nil {
					t.Fatal(err)
				}
				bank.spentEventually(t, session.UsageTotals{Spent: want})
			})
		}
	}
}

// The provider adds input that the request does not contain, or counts more tokens than the request
// has bytes.
func TestTheWholeContextWindowIsReservedIfTheInputSizeIsUnknown(t *testing.T) {
	t.Parallel()
	const chat, messages, responses = spendPath, "/v1/messages", "/v1/responses"
	const google = "/v1beta/models/claude:generateContent"
	const content = `"max_tokens":10,"messages":[{"role":"user","content":[%s]}]`
	for _, c := range []struct {
		path, body string
		more       bool
	}{
		{chat, fmt.Sprintf(content, `{"type":"image_url","image_url":{"url":"https://host/a.png"}}`), true},
		{chat, fmt.Sprintf(content, `{"type":"image_url","image_url":{"url" : "http://host/a.png"}}`), true},
		{chat, fmt.Sprintf(content, `{"type":"image_url","image_url":{"\u0075rl":"https://host/a.png"}}`), true},
		{chat, fmt.Sprintf(content, `{"type":"image_url","image_url":{"URL":"https://host/a.png"}}`), true},
		{chat, fmt.Sprintf(content, `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`), true},
		{chat, fmt.Sprintf(content, `{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}`), true},
		{chat, fmt.Sprintf(content, `{"type":"text","text":"the JSON {\"url\": \"https://host\"} \u003cb\u003e"}`), false},
		{chat, `"max_tokens":10,"web_search_options":{"user_location":null}`, true},
		{chat, `"max_tokens":10,"tools":[{"type":"function","function":{"parameters":{"properties":{"url":{}}}}}]`, false},
		{messages, fmt.Sprintf(content, `{"type":"image","source":{"type":"file","file_id":"file_1"}}`), true},
		{messages, fmt.Sprintf(content, `{"type":"document","source":{"type":"base64","media_type":"application/pdf",`+
			`"data":"AAAA"}}`), true},
		{messages, `"max_tokens":10,"tools":[{"name":"a"},{"name":"b","type":"bash_20250124"}]`, false},
		{messages, `"max_tokens":10,"tools":[{"name":"a","type":"web_search_20250305"}]`, true},
		{responses, `"max_output_tokens":10,"input":[{"type":"item_reference","id":"msg_1"}]`, true},
		{responses, `"max_output_tokens":10,"input":[{"id":"msg_1"}]`, true},
		{responses, `"max_output_tokens":10,"input":"hi","previous_response_id":"resp_1"`, true},
		{responses, `"max_output_tokens":10,"input":"hi","conversation":{"more":1,"id":"conv_1"}`, true},
		{responses, `"max_output_tokens":10,"prompt":{"version":"2","id":"pmpt_1"}`, true},
		{responses, `"max_output_tokens":10,"tools":[{"type":"function"},{"type":"mcp","server_label":"a"}]`, true},
		{responses, `"max_output_tokens":10,"tools":[{"type":"custom"}],"previous_response_id":null`, false},
		{google, `"generationConfig":{"maxOutputTokens":10},"tools":[{"googleSearch":{}}]`, true},
		{google, `"generationConfig":{"maxOutputTokens":10},"tools":[{"functionDeclarations":[]}]`, false},
		{google, `"generationConfig":{"maxOutputTokens":10},"contents":[{"parts":[{"inlineData":{"data":"AAAA",` +
			`"mimeType":"image/png"}}]}]`, true},
	} {
		bank := newBank(t, session.SpendLimits{Month: 100 * session.Dollar})
		bank.claims.PerUser.Day = session.Dollar // a low limit: the session reserves only what the call needs
		s := serve(t, newUpstream(t, answerJSON(chatAnswer)).URL, bank.limited("u"))
		s.must(t, c.path, `{"model":"claude",`+c.body+`}`)
		const window = 75 * cent // 200,000 tokens at the price of cache writes
		if got := bank.usage(t).Reserved; c.more != (got >= window) {
			t.Errorf("%s reserves %s", c.body, got)
		}
	}
}

// Anthropic stores input for an hour at a higher price, and OpenAI charges wrong predictions as
// output.
func TestCacheWritesAndPredictionsAreReservedAndCountedAtHigherPrices(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 100_000)
	for _, c := range []struct {
		path, body, answer string
		cost               session.Dollars
	}{
		{"/v1/messages", `{"model":"claude","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"` +
			text + `","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}`,
			`{"usage":{"input_tokens":0,"output_tokens":0,"cache_creation_input_tokens":100000,` +
				`"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":100000}}}`, 60 * cent},
		{spendPath, `{"model":"claude","max_tokens":1,"prediction":{"type":"content","content":"` + text + `"}}`,
			`{"usage":{"prompt_tokens":0,"completion_tokens":100000}}`, 150 * cent},
	} {
		bank := newBank(t, session.SpendLimits{Month: 10 * session.Dollar})
		var reserved session.Dollars
		s := serve(t, newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			reserved = bank.usage(t).Reserved
			answerJSON(c.answer)(w, r)
		}).URL, bank.limited("u"))
		s.must(t, c.path, c.body)
		if err := s.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := bank.usage(t).Spent; got != c.cost || reserved < got {
			t.Errorf("%s costs %s, and %s were reserved", c.path, got, reserved)
		}
	}
}

func TestCallsAboveTheSpendingLimitAreRefused(t *testing.T) {
	t.Parallel()
	for name, wire := range spendWires {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bank := newBank(t, session.SpendLimits{Month: 3 * cent})
			up := newUpstream(t, answerJSON(fmt.Sprintf(wire.answer, 100, 1000)))
			reached := make(chan string, 1)
			s := serve(t, up.URL, bank.limited("u"), func(o *modelproxy.Options) {
				o.Reached = func(limit modelproxy.Limit) { reached <- limit.TurnID + ": " + limit.Message }
			})
			if err := s.BeginTurn("7"); err != nil {
				t.Fatal(err)
			}
			request := fmt.Sprintf(wire.request, wire.limited)
			s.must(t, wire.path, request) // it costs 1.53 cents
			got := s.post(t.Context(), wire.path, request)
			const message = "spending limit of $0.03 per month for this user is reached: $0.02 spent or reserved; " +
				"resets 2026-12-01T00:00:00Z; this call may cost up to $0.03"
			if got.status != http.StatusPaymentRequired || !strings.Contains(got.body, message) ||
				!strings.Contains(strings.ToLower(got.body), "parley_limit") {
				t.Errorf("the answer is %d %s", got.status, got.body)
			}
			if got := <-reached; got != "7: "+message {
				t.Errorf("the turn ends with %q", got)
			}
			if up.count() != 1 {
				t.Errorf("the endpoint got %d calls", up.count())
			}
		})
	}
}

const (
	spendPath  = "/v1/chat/completions"
	spendCall  = `{"model":"claude","messages":[],"max_tokens":1000}` // at most 2.3 cents
	chatAnswer = `{"usage":{"prompt_tokens":100,"completion_tokens":1000}}`
)

// chatCost is the cost of a call that is answered with chatAnswer.
const chatCost = 153 * cent / 100

func TestASessionSpendsItsReservationWhileTheArchiveIsUnavailable(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: 10 * session.Dollar})
	up := newUpstream(t, answerJSON(chatAnswer))
	s := serve(t, up.URL, bank.limited("u"))
	s.must(t, spendPath, spendCall)
	bank.away.Store(true)
	var refused reply
	for refused.status != http.StatusPaymentRequired && up.count() < 100 {
		refused = s.post(t.Context(), spendPath, spendCall)
	}
	if !strings.Contains(refused.body, "the spending limit cannot be checked: the archive does not answer") {
		t.Errorf("the last answer is %d %s", refused.status, refused.body)
	}
	if up.count() < 5 || up.count() > 20 {
		t.Errorf("the session made %d calls", up.count())
	}
	bank.away.Store(false)
	if err := s.EndTurn(); err != nil {
		t.Fatal(err)
	}
	bank.spentEventually(t, session.UsageTotals{Spent: chatCost * session.Dollars(up.count())})
	s.must(t, spendPath, spendCall)
}

func TestTheReservationIsReturnedAtTheEndOfATurn(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: session.Dollar})
	s := serve(t, newUpstream(t, answerJSON(chatAnswer)).URL, bank.limited("u"))
	if err := s.BeginTurn("1"); err != nil {
		t.Fatal(err)
	}
	s.must(t, spendPath, spendCall)
	if bank.usage(t).Reserved == 0 {
		t.Error("nothing is reserved")
	}
	if err := s.EndTurn(); err != nil {
		t.Fatal(err)
	}
	bank.spentEventually(t, session.UsageTotals{Spent: chatCost})
	s.must(t, spendPath, spendCall)
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	bank.spentEventually(t, session.UsageTotals{Spent: 2 * chatCost})
}

func TestCallsDoNotWaitForTheArchiveIfThereIsNoSpendingLimit(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{})
	open := make(chan struct{})
	s := serve(t, newUpstream(t, answerJSON(chatAnswer)).URL, func(o *modelproxy.Options) {
		o.Ledger = func(ctx context.Context, report session.SpendReport) (session.SpendGrant, error) {
			select {
			case <-open:
			case <-ctx.Done():
				return session.SpendGrant{}, ctx.Err()
			}
			return bank.ledger("u", 1)(ctx, report)
		}
	})
	for range 3 {
		s.must(t, spendPath, `{"model":"claude","messages":[]}`)
	}
	if bank.reports.Load() > 0 {
		t.Error("the archive was asked first")
	}
	close(open)
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	usage := bank.usage(t)
	want := session.SpentLine{Period: "2026-11-30", Model: "claude", Calls: 3, Input: 300, Output: 3000,
		Cost: 3 * chatCost}
	if len(usage.Lines) != 1 || usage.Lines[0].SpentLine != want {
		t.Errorf("the ledger has %+v", usage.Lines)
	}
}

func TestCallsWithAnUnknownPriceAreRefusedIfThereIsASpendingLimit(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: session.Dollar})
	up := newUpstream(t, answerJSON(chatAnswer))
	for body, want := range map[string]string{
		`{"model":"window-only"}`:                                  `\"window-only\" has no price (ConfigMap parley-models)`,
		`{"model":"unknown"}`:                                      `has no price`,
		`{"model":"claude","service_tier":"priority"}`:             `with the field service_tier`,
		`{"model":"claude","speed":"fast"}`:                        `with the field speed`,
		`{"model":"claude","inference_geo":"us"}`:                  `with the field inference_geo`,
		`{"model":"claude","extra_body":{"n":9}}`:                  `with the field extra_body`,
		`{"model":"claude","input_cost_per_token":0}`:              `with the field input_cost_per_token`,
		`{"model":"claude","context_management":"compact"}`:        `with the field context_management`,
		`{"model":"claude","base_model":"gpt"}`:                    `with the field base_model`,
		`{"model":"claude","tools":[{"type":"image_generation"}]}`: `with the field tools`,
		`{"model":"claude","max_tokens":"many"}`:                   `the field max_tokens is not a valid number`,
		`{"model":"claude","max_tokens":1,"Max_Tokens":2}`:         `the field max_tokens may occur only once`,
	} {
		s := serve(t, up.URL, bank.limited("u"), func(o *modelproxy.Options) {
			if strings.Contains(body, "unknown") {
				o.Model = "openrouter/unknown" // OpenRouter reports the cost, but only after the call
			}
		})
		path := spendPath
		switch {
		case strings.Contains(body, "compact"):
			path = "/v1/messages"
		case strings.Contains(body, "image_generation"):
			path = "/v1/responses"
		}
		got := s.post(t.Context(), path, body)
		if got.status/100 != 4 || !strings.Contains(got.body, want) {
			t.Errorf("%s gets %d %s", body, got.status, got.body)
		}
		if strings.Contains(want, "price") && !strings.Contains(got.body, "there is a spending limit") {
			t.Errorf("%s gets %s", body, got.body)
		}
	}
	if up.count() > 0 {
		t.Errorf("the endpoint got %d calls", up.count())
	}
}

func answerStatus(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", code) }
}

const failedEvent = `data: {"error":{"message":"overloaded"}}` + "\n\n"

// The endpoint fails, breaks off its response, or does not report the usage of the call.
func TestCallsWithoutUsageAreChargedAnEstimateOrTheMaximum(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		min    session.Dollars
		max    session.Dollars
	}{
		"refused":  {answerStatus(http.StatusBadRequest), 0, 0},
		"failed":   {answerStatus(http.StatusServiceUnavailable), 0, 0},
		"dropped":  {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, 0},
		"no usage": {answerJSON(`{"choices":[]}`), 2 * cent, 3 * cent},
		"broken": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 300))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 15 * cent / 100, 16 * cent / 100},
		"silent": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 2 * cent, 3 * cent},
		"an error after a part": {answerEvents("data: " + strings.Repeat("x", 300) + "\n\n" + failedEvent),
			15 * cent / 100, 3 * cent},
		"an error": {answerEvents(": wait\n\n" + failedEvent), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bank := newBank(t, session.SpendLimits{Month: session.Dollar})
			s := serve(t, newUpstream(t, c.answer).URL, bank.limited("u"), func(o *modelproxy.Options) {
				o.Silence = time.Second
			})
			s.post(t.Context(), spendPath, spendCall)
			if err := s.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := bank.usage(t).UsageTotals
			if got.Spent < c.min || got.Spent > c.max || got.Reserved > 0 || got.Unsettled > 0 {
				t.Errorf("the ledger has %+v", got)
			}
		})
	}
}

func TestACallIsChargedIfTheAgentDisconnectsBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: session.Dollar})
	arrived, hold := make(chan struct{}), make(chan struct{})
	s := serve(t, newUpstream(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-hold
	}).URL, bank.limited("u"), func(o *modelproxy.Options) { o.Linger = 50 * time.Millisecond })
	t.Cleanup(func() { close(hold) })
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-arrived
		leave()
	}()
	s.post(ctx, spendPath, spendCall)
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := bank.usage(t).UsageTotals; got.Spent < 2*cent || got.Reserved > 0 {
		t.Errorf("the ledger has %+v", got)
	}
}

func TestACallIsChargedIfTheAgentDisconnectsDuringTheAnswer(t *testing.T) {
	t.Parallel()
	const started = `data: {"type":"message_start","message":{"usage":{"input_tokens":10,"output_tokens":1}}}` + "\n\n"
	text := "data: " + strings.Repeat("x", 1500) + "\n\n"
	for name, c := range map[string]struct {
		path, events string
		least        session.Dollars
	}{
		"partial usage": {"/v1/messages", started + text, 75 * cent / 100}, // 500 output tokens
		"no usage":      {spendPath, text, 2 * cent},                       // the model may have reasoned
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bank := newBank(t, session.SpendLimits{Month: session.Dollar})
			s := serve(t, newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				answerEvents(c.events)(w, r)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}).URL, bank.limited("u"), func(o *modelproxy.Options) { o.Linger = 50 * time.Millisecond })
			ctx, leave := context.WithCancel(t.Context())
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+c.path,
				strings.NewReader(`{"model":"claude","stream":true,"max_tokens":1000}`))
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if _, err := io.ReadFull(response.Body, make([]byte, len(c.events))); err != nil {
				t.Fatal(err)
			}
			leave()
			if err := s.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := bank.usage(t).UsageTotals; got.Spent < c.least || got.Spent > 3*cent || got.Reserved > 0 {
				t.Errorf("the ledger has %+v", got)
			}
		})
	}
}

// The session ends while a call is in flight. Only the cost of this call stays reserved.
func TestTheLastReportDoesNotWaitForCallsInFlight(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: 100 * session.Dollar})
	arrived, hold := make(chan struct{}), make(chan struct{})
	s := serve(t, newUpstream(t, func(_ http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-hold
	}).URL, bank.limited("u"))
	t.Cleanup(func() { close(hold) })
	go s.post(t.Context(), spendPath, spendCall)
	<-arrived
	if got := bank.usage(t).Reserved; got < 10*cent {
		t.Fatalf("%s are reserved", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := s.Finish(ctx); err != nil {
		t.Error(err)
	}
	if got := bank.usage(t).Reserved; got < 2*cent || got > 3*cent {
		t.Errorf("%s stay reserved", got)
	}
}

func TestCostsCountForTheDayOfTheReservation(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Day: 5 * cent})
	arrived, hold := make(chan struct{}, 2), make(chan struct{})
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-hold
		answerJSON(chatAnswer)(w, r)
	})
	s := serve(t, up.URL, bank.limited("u"))
	var calls sync.WaitGroup
	calls.Go(func() { s.must(t, spendPath, spendCall) })
	<-arrived
	bank.clock.Set(time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC))
	calls.Go(func() { s.must(t, spendPath, spendCall) })
	<-arrived
	close(hold)
	calls.Wait()
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, month := range []string{"2026-11", "2026-12"} {
		usage, err := bank.Usage(t.Context(), "ada", "", month)
		if err != nil || usage.UsageTotals != (session.UsageTotals{Spent: chatCost}) {
			t.Errorf("%s: the ledger has %+v, %v", month, usage, err)
		}
	}
}

// Another session of the same user has a limit of 20 dollars and reserves 15 dollars. This session
// has a limit of 10 dollars, so the archive refuses the new reservation in this session's
// background report. A call that begins before the refusal arrives uses the session's first
// reservation. The cost of this call must stay reserved.
func TestACallThatBeginsDuringAReportKeepsItsReservation(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: 10 * session.Dollar})
	raised := bank.claims
	raised.PerUser.Month = 20 * session.Dollar
	other := func(sequence int64, need session.Dollars) (grant session.SpendGrant) {
		grant, err := bank.Spend(context.Background(), "other", 1, raised, session.SpendReport{Sequence: sequence,
			Need: need, Want: need})
		if err != nil {
			t.Error(err)
		}
		return grant
	}
	var calls atomic.Int64
	answered, sent, hold := make(chan struct{}), make(chan struct{}), make(chan struct{})
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 2 {
			close(sent)
			<-hold
		}
		answerJSON(chatAnswer)(w, r)
	})
	s := serve(t, up.URL, bank.limited("u"), func(o *modelproxy.Options) {
		to := o.Ledger
		o.Ledger = func(ctx context.Context, report session.SpendReport) (session.SpendGrant, error) {
			if report.Sequence != 2 {
				return to(ctx, report)
			}
			other(1, 15*session.Dollar)
			grant, err := to(ctx, report)
			close(answered)
			<-sent
			return grant, err
		}
	})
	s.must(t, spendPath, spendCall)
	<-answered
	var second sync.WaitGroup
	second.Go(func() { s.must(t, spendPath, spendCall) })
	<-sent
	if got := other(2, 20*session.Dollar-chatCost); got.Refusal == nil {
		t.Errorf("the other session gets %+v, although a call is in flight", got)
	}
	close(hold)
	second.Wait()
}

// Each session has several calls in flight. Reports and answers get lost at random moments.
func TestTwentyProxiesStayWithinALimitOfOneDollar(t *testing.T) {
	t.Parallel()
	bank := newBank(t, session.SpendLimits{Month: session.Dollar})
	var mu sync.Mutex
	var inFlight, highest, charged session.Dollars

	up := newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		inFlight += chatCost
		highest = max(highest, charged+inFlight)
		mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		inFlight, charged = inFlight-chatCost, charged+chatCost
		mu.Unlock()
		answerJSON(chatAnswer)(w, r)
	})
	var sessions sync.WaitGroup
	var sent, refused atomic.Int64
	for i := range 20 {
		sessions.Go(func() {
			s := serve(t, up.URL, bank.limited(fmt.Sprintf("u-%d", i)), func(o *modelproxy.Options) {
				o.ReserveTimeout = 10 * time.Second
				to := o.Ledger
				count := 0
				o.Ledger = func(ctx context.Context, report session.SpendReport) (session.SpendGrant, error) {
					grant, err := to(ctx, report)
					if count++; count%4 == 1 {
						return session.SpendGrant{}, errors.New("the answer is lost")
					}
					return grant, err
				}
			})
			for range 3 {
				if err := s.BeginTurn(""); err != nil {
					t.Error(err)
				}
				var calls sync.WaitGroup
				for range 3 {
					calls.Go(func() {
						switch got := s.post(t.Context(), spendPath, spendCall); {
						case got.status == http.StatusOK:
							sent.Add(1)
						case strings.Contains(got.body, "spending limit of $1.00"):
							refused.Add(1)
						default:
							t.Errorf("%d %s %v", got.status, got.body, got.err)
						}
					})
				}
				calls.Wait()
				if err := s.EndTurn(); err != nil {
					t.Error(err)
				}
			}
			if err := s.Finish(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	sessions.Wait()
	usage := bank.usage(t)
	t.Logf("%d calls sent, %d refused; at most %s spent or in flight; ledger %s, endpoint %s; %d reports", sent.Load(),
		refused.Load(), highest, usage.Spent, charged, bank.reports.Load())
	if highest > session.Dollar || usage.Spent != charged || usage.Reserved != 0 || usage.Unsettled != 0 {
		t.Errorf("at most %s spent or in flight; the ledger has %+v, the endpoint charged %s", highest, usage.UsageTotals,
			charged)
	}
	if refused.Load() == 0 || sent.Load() < 30 {
		t.Errorf("%d calls were sent, %d refused", sent.Load(), refused.Load())
	}
}

// BenchmarkCall compares calls with and without a spending limit. Near the limit, each call needs a
// request to the archive.
func BenchmarkCall(b *testing.B) {
	for name, limits := range map[string]session.SpendLimits{"1 no limit": {},
		"2 limit far": {Month: 1e6 * session.Dollar}, "3 limit near": {Month: session.Dollar / 50}} {
		b.Run(name, func(b *testing.B) {
			bank := newBank(b, limits)
			up := httptest.NewServer(answerJSON(`{"usage":{"prompt_tokens":1,"completion_tokens":1}}`))
			b.Cleanup(up.Close)
			options := modelproxy.Options{BaseURL: up.URL, Model: "gpt", Models: session.Models{"gpt": {Input: "0.000001",
				Output: "0.000001"}}, Busy: idle, Log: slog.New(slog.DiscardHandler)}
			if name == "3 limit near" {
				options.Models["gpt"] = session.Model{Input: "0.000001", Output: "10"} // a call needs half of the limit
			}
			bank.limited("u")(&options)
			address, key := archivetest.Serve(b, bank.Store, "u")
			token, err := session.SignToken(key, session.Claims{Audience: session.AudienceArchive, UID: "u", Attempt: 1,
				Expires: time.Now().Add(time.Hour).Unix(), Spend: &bank.claims})
			if err != nil {
				b.Fatal(err)
			}
			archive := handover.New(address, "", "u", token, 1, options.Log)
			options.Ledger = func(ctx context.Context, report session.SpendReport) (session.SpendGrant, error) {
				bank.reports.Add(1)
				return archive.Spend(ctx, report)
			}
			proxy, err := modelproxy.New(options)
			if err != nil {
				b.Fatal(err)
			}
			server := httptest.NewServer(proxy)
			b.Cleanup(server.Close)
			s := &served{proxy, server.URL}
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if got := s.post(b.Context(), spendPath, `{"model":"gpt","max_tokens":1000}`); got.status != http.StatusOK {
					b.Fatalf("%d %s", got.status, got.body)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			b.ReportMetric(float64(bank.reports.Load())/float64(len(took)), "reports/call")
		})
	}
}
