package modelproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

type heard struct {
	mu   sync.Mutex
	said []string
}

func (h *heard) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, fmt.Sprintf(format, args...))
}

func (h *heard) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.said, "\n")
}

func (h *heard) listen(o *modelproxy.Options) {
	o.Reached = func(l modelproxy.Limit) { h.say("in %q: %s", l.TurnID, l.Message) }
	o.Unpriced = func(reason string) { h.say("%s", reason) }
}

func begin(t *testing.T, p *served, turn string) {
	t.Helper()
	if err := p.BeginTurn(turn); err != nil {
		t.Fatal(err)
	}
}

func TestTheNumberOfModelCallsPerTurnIsLimited(t *testing.T) {
	u := newUpstream(t, answerJSON(messagesJSON))
	var h heard
	p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxCalls = 2 })
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	p.must(t, "/v1/chat/completions", `{"model":"gpt"}`)
	if h.all() != "" {
		t.Errorf("the callbacks are %s", h.all())
	}
	const message = "the limit of 2 model calls per turn (max_iterations) is reached"
	for path, want := range map[string]string{
		"/v1/messages":  `{"error":{"message":"` + message + `","type":"parley_limit"},"type":"error"}` + "\n",
		"/v1/responses": `{"error":{"message":"` + message + `","type":"parley_limit"}}` + "\n",
	} {
		if got := p.post(t.Context(), path, `{"model":"claude"}`); got.status != http.StatusPaymentRequired ||
			got.body != want {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if h.all() != `in "1": `+message {
		t.Errorf("the callbacks are %s", h.all())
	}
	if u.count() != 2 {
		t.Errorf("the endpoint got %d calls", u.count())
	}
	begin(t, p, "2")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := p.Usage(); got.Session.Calls != 3 || got.Turn.Calls != 1 || got.TurnID != "2" {
		t.Errorf("used %+v", got)
	}
}

func TestTheNumberOfModelCallsOutsideOfTurnsIsLimited(t *testing.T) {
	u := newUpstream(t, answerJSON(messagesJSON))
	var h heard
	p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxCalls = 1 })
	for range 2 {
		p.must(t, "/v1/messages", `{"model":"claude"}`)
		if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.status != http.StatusPaymentRequired {
			t.Errorf("got %+v", got)
		}
		begin(t, p, "turn")
		p.must(t, "/v1/messages", `{"model":"claude"}`)
		if err := p.EndTurn(); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.Usage(); got.Session.Calls != 4 || got.Turn.Calls != 0 || got.TurnID != "" {
		t.Errorf("used %+v", got)
	}
	if got := h.all(); strings.Count(got, `in "": the limit of 1 model calls per turn (max_iterations)`) != 2 {
		t.Errorf("the callbacks are %s", got)
	}
}

func TestTheBudgetLimitsTheCostOfATurn(t *testing.T) {
	u := newUpstream(t, answerEvents(messagesEvents)) // each call costs $0.001425
	for budget, calls := range map[string]int{"0.001425": 1, "0.0014250001": 2, "0.0014249999": 1, "0.004275": 3, "0": 0,
		"1000": 5} {
		var h heard
		p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxBudget = budget })
		begin(t, p, "1")
		made := 0
		for made < 5 && p.post(t.Context(), "/v1/messages", `{"model":"claude"}`).status == http.StatusOK {
			made++
		}
		if made != calls {
			t.Errorf("with %s dollars there were %d calls, want %d", budget, made, calls)
		}
		said := strings.Count(h.all(), `in "1": the budget of `+budget+` US dollars`)
		if (said == 1) != (calls < 5) {
			t.Errorf("with %s dollars the callbacks are %q", budget, h.all())
		}
		begin(t, p, "2")
		got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`).status
		if (got == http.StatusOK) != (budget != "0") {
			t.Errorf("with %s dollars the next turn is answered %d", budget, got)
		}
	}
	_, err := modelproxy.New(modelproxy.Options{Model: "gpt", MaxBudget: "much"})
	if err == nil || !strings.Contains(err.Error(),
		"max_budget_per_task") {
		t.Errorf("a bad budget: %v", err)
	}
}

func TestAnExceededBudgetIsReportedBeforeTheNextCall(t *testing.T) {
	u := newUpstream(t, answerJSON(messagesJSON))
	var h heard
	p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxBudget = "0.001" })
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := h.all(); got != `in "1": the budget of 0.001 US dollars per turn `+
		`(max_budget_per_task) is spent: the cost is 0.001425` {
		t.Errorf("the callbacks are %s", got)
	}
}

const refusedCall = "the call is refused: there is a budget (max_budget_per_task), but the cost of the call is " +
	"unknown, because "

func TestABudgetRefusesCallsWithAnUnknownCost(t *testing.T) {
	const chat, messages, responses = "/v1/chat/completions", "/v1/messages", "/v1/responses"
	for name, c := range map[string]struct {
		model, path, body, says string
	}{
		"chat without a price":      {"x/y", chat, `{"model":"mystery"}`, `the model \"mystery\" has no price`},
		"messages without a price":  {"x/y", messages, `{"model":"mystery"}`, `the model \"mystery\" has no price`},
		"responses without a price": {"x/y", responses, `{"model":"mystery"}`, `the model \"mystery\" has no price`},
		"Gemini without a price": {"x/y", "/v1beta/models/mystery:generateContent", `{}`,
			`the model \"mystery\" has no price`},
		"a context window only":   {"x/y", chat, `{"model":"window-only"}`, `has no price`},
		"no model":                {"x/y", responses, `{"prompt":{"id":"p"}}`, `the model \"\" has no price`},
		"in the background":       {"x/y", responses, `{"model":"gpt","background":true}`, "the field background"},
		"a dearer service tier":   {"x/y", chat, `{"model":"gpt","service_tier":"priority"}`, "the field service_tier"},
		"other models":            {"x/y", chat, `{"model":"gpt","models":["mystery"]}`, "the field models"},
		"fallbacks":               {"x/y", chat, `{"model":"gpt","fallbacks":["mystery"]}`, "the field fallbacks"},
		"a price":                 {"x/y", chat, `{"model":"gpt","background":false,"service_tier":"auto"}`, ""},
		"a provider that reports": {"openrouter/y", chat, `{"model":"mystery"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, answerJSON(chatJSON))
			var h heard
			p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.Model, o.MaxBudget = c.model, "1" })
			begin(t, p, "1")
			for range 2 {
				got := p.post(t.Context(), c.path, c.body)
				switch {
				case c.says == "" && got.status != http.StatusOK && !strings.Contains(got.body, "did not report"):
					t.Errorf("the answer is %d %s", got.status, got.body)
				case c.says != "" && (got.status != http.StatusPaymentRequired || !strings.Contains(got.body, refusedCall) ||
					!strings.Contains(got.body, c.says)):
					t.Errorf("the answer is %d %s", got.status, got.body)
				}
			}
			if c.says == "" {
				return
			}
			if u.count() != 0 || p.Usage().Session.Calls != 0 {
				t.Errorf("the endpoint got %d calls, and %d are counted", u.count(), p.Usage().Session.Calls)
			}
			if strings.Count(h.all(), refusedCall) != 1 {
				t.Errorf("the callbacks are %s", h.all())
			}
			// Calls with a known cost still work. Without a budget, all calls work.
			p.must(t, chat, `{"model":"gpt"}`)
			serve(t, u.URL, func(o *modelproxy.Options) { o.Model = c.model }).must(t, c.path, c.body)
		})
	}
}

func TestCallsToUnknownPathsAreRefusedIfThereIsABudget(t *testing.T) {
	u := newUpstream(t, answerJSON(chatJSON))
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.MaxBudget = "1" })
	for _, path := range []string{"/v1/embeddings", "/v1/batches", "/v1/messages/batches", "/v1/completions", "/v1/files",
		"/v1/images/generations", "/v1/audio/speech", "/v1/responses/resp_1", "/v1beta/models/gpt:embedContent",
		"/v1beta/models/gpt:batchGenerateContent"} {
		if got := p.post(t.Context(), path, `{"model":"gpt"}`); got.status != http.StatusNotFound {
			t.Errorf("%s is answered with %d %s", path, got.status, got.body)
		}
	}
	if u.count() != 0 {
		t.Errorf("the endpoint got %d calls", u.count())
	}
}

func TestConcurrentCallsAreAllCounted(t *testing.T) {
	const calls = 7
	together := make(chan struct{})
	var arrived sync.WaitGroup
	arrived.Add(calls)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		arrived.Done()
		<-together
		answerEvents(messagesEvents)(w, r)
	})
	var h heard
	p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) {
		o.MaxCalls, o.UsageFile = calls, filepath.Join(t.TempDir(), ".parley", "usage.json")
	})
	begin(t, p, "1")
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			if got := p.post(t.Context(), "/v1/messages", `{"model":"claude","stream":true}`); got.body != messagesEvents {
				t.Errorf("got %+v", got)
			}
		})
	}
	arrived.Wait()
	if got := p.post(t.Context(), "/v1/messages", `{}`); got.status != http.StatusPaymentRequired {
		t.Errorf("one more: %+v", got)
	}
	close(together)
	all.Wait()
	const want = "7 calls, 700 in, 350 out, 7000 read, 140 written, $0.009975"
	if got := p.Usage(); counts(got.Session) != want || counts(got.Turn) != want {
		t.Errorf("counted %+v", got)
	}
}

func TestCallsInFlightAreBounded(t *testing.T) {
	const calls, most = 20, 8
	together := make(chan struct{})
	var busy atomic.Int32
	var mu sync.Mutex
	var now, peak int
	count := func(more int) int {
		mu.Lock()
		defer mu.Unlock()
		now += more
		peak = max(peak, now)
		return peak
	}
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		count(1)
		<-together
		count(-1)
		answerJSON(messagesJSON)(w, r)
	})
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.Busy = func() func() { busy.Add(1); return func() {} } })
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.status != http.StatusOK {
				t.Errorf("got %+v", got)
			}
		})
	}
	eventually(t, "all calls have arrived and all slots are used", func() bool {
		return busy.Load() == calls &&
			count(0) >= most
	})
	close(together)
	all.Wait()
	if count(0) != most || p.Usage().Session.Calls != calls {
		t.Errorf("there were %d concurrent calls, and the usage is %+v", count(0), p.Usage())
	}
}

func TestACallThatOutlivesItsTurnCountsOnlyForTheSession(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-release
		answerJSON(messagesJSON)(w, r)
	})
	p := serve(t, u.URL)
	begin(t, p, "1")
	done := make(chan reply)
	go func() { done <- p.post(t.Context(), "/v1/messages", `{"model":"claude"}`) }()
	<-asked
	begin(t, p, "2")
	close(release)
	<-done
	if got := p.Usage(); counts(got.Session) != messagesCounts || got.Turn.Calls != 0 || got.Turn.Output != 0 {
		t.Errorf("counted %+v", got)
	}
}

func TestTheUsageSurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), ".parley", "usage.json")
	u := newUpstream(t, answerJSON(messagesJSON))
	limited := func(o *modelproxy.Options) { o.UsageFile, o.MaxCalls = file, 3 }
	p := serve(t, u.URL, limited)
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)

	p = serve(t, u.URL, limited)
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.status != http.StatusPaymentRequired {
		t.Errorf("the resumed turn has a fourth call: %+v", got)
	}
	p = serve(t, u.URL, limited)
	begin(t, p, "2")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := p.Usage(); counts(got.Session) != "4 calls, 400 in, 200 out, 4000 read, 80 written, $0.0057" ||
		counts(got.Turn) != messagesCounts {
		t.Errorf("counted %+v", got)
	}

	if err := os.WriteFile(file, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serve(t, u.URL, limited).Usage(); got != (modelproxy.Usage{}) {
		t.Errorf("with an invalid file the usage is %+v", got)
	}
}

// The usage file is lost with the workspace, but the journal also contains the usage.
func TestTheUsageIsRestoredFromTheJournal(t *testing.T) {
	u := newUpstream(t, answerJSON(messagesJSON))
	limited := func(o *modelproxy.Options) {
		o.UsageFile, o.MaxCalls = filepath.Join(t.TempDir(), "usage.json"), 2
	}
	p := serve(t, u.URL, limited)
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	counted := p.Counted()

	p = serve(t, u.URL, limited)
	if err := p.Restore(counted); err != nil {
		t.Fatal(err)
	}
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if err := p.Restore(counted); err != nil { // the restored usage is older than the current usage
		t.Fatal(err)
	}
	if got := p.Usage(); counts(got.Session) != "2 calls, 200 in, 100 out, 2000 read, 40 written, $0.00285" {
		t.Errorf("counted %+v", got)
	}
	if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.status != http.StatusPaymentRequired {
		t.Errorf("the resumed turn has a third call: %+v", got)
	}
}

// killedVariable is an environment variable. If it is set, the test binary acts as a proxy until
// the test kills it. The value is the path of the proxy's usage file.
const killedVariable = "KILLED_PROXY"

func TestMain(m *testing.M) {
	file := os.Getenv(killedVariable)
	if file == "" {
		os.Exit(m.Run())
	}
	proxy, err := modelproxy.New(modelproxy.Options{BaseURL: os.Getenv("BASE"), Model: "anthropic/claude", Models: prices,
		UsageFile: file, Busy: idle, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = proxy.BeginTurn("1")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server := &http.Server{Addr: os.Getenv("ADDRESS"), Handler: proxy, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}

func TestAllCallsOfAKilledSessionAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		// received is the part of the response that the agent receives before the test kills the
		// proxy.
		received, want string
	}{
		"before an answer": {"", "1 calls, 0 in, 0 out, 0 read, 0 written, $0"},
		"in an answer": {messagesEvents[:strings.Index(messagesEvents, "event: ping")],
			"1 calls, 100 in, 1 out, 1000 read, 20 written, $0.00069"},
		"at the end of an answer": {messagesEvents, messagesCounts},
	} {
		t.Run(name, func(t *testing.T) {
			asked, release := make(chan struct{}), make(chan struct{})
			u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, c.received)
				_ = http.NewResponseController(w).Flush()
				close(asked)
				<-release
			})
			defer close(release)
			file := filepath.Join(t.TempDir(), ".parley", "usage.json")
			address := freeAddress(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), killedVariable+"="+file, "BASE="+u.URL, "ADDRESS="+address)
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Wait() }()
			eventually(t, "it serves", func() bool {
				connection, err := net.Dial("tcp", address)
				if err == nil {
					_ = connection.Close()
				}
				return err == nil
			})
			response, err := http.Post("http://"+address+"/v1/messages", "application/json",
				strings.NewReader(`{"model":"claude","stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			<-asked
			if _, err := io.ReadFull(response.Body, make([]byte, len(c.received))); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(response.Body); err == nil {
				t.Error("the answer was not interrupted")
			}
			again := serve(t, u.URL, func(o *modelproxy.Options) { o.UsageFile = file })
			begin(t, again, "1")
			if got := again.Usage(); counts(got.Session) != c.want || counts(got.Turn) != c.want {
				t.Errorf("counted %+v, want %s", got, c.want)
			}
		})
	}
}

func TestCallsSucceedEvenIfTheUsageFileCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	p := serve(t, newUpstream(t, answerJSON(messagesJSON)).URL, func(o *modelproxy.Options) {
		o.UsageFile = filepath.Join(dir,
			"usage.json", "in", "it")
	})
	if err := os.WriteFile(filepath.Join(dir, "usage.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.BeginTurn("1"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a turn begins: %v", err)
	}
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := counts(p.Usage().Turn); got != messagesCounts {
		t.Errorf("counted %s", got)
	}
}

func TestANamedPipeAsUsageFileDoesNotBlock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "usage.json")
	for _, pipe := range []string{file, file + ".new"} {
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u := newUpstream(t, answerJSON(messagesJSON))
	keep := func(o *modelproxy.Options) { o.UsageFile = file }
	p := serve(t, u.URL, keep)
	begin(t, p, "1")
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := counts(serve(t, u.URL, keep).Usage().Turn); got != messagesCounts {
		t.Errorf("the file has %s", got)
	}
}

func TestATurnWithABudgetEndsIfAResponseReportsNoUsage(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a stream": answerEvents(chatText + chatDone), "a whole": answerJSON(`{"choices":[]}`),
		"an empty usage": answerJSON(`{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}`),
	} {
		t.Run(name, func(t *testing.T) {
			var h heard
			u := newUpstream(t, answer)
			p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxBudget = "1" })
			ask := func() reply { return p.post(t.Context(), "/v1/chat/completions", `{"model":"gpt","stream":true}`) }
			begin(t, p, "1")
			if got := ask(); got.status != http.StatusOK {
				t.Errorf("the first call is answered with %+v", got)
			}
			eventually(t, "the turn ends", func() bool {
				return strings.Contains(h.all(), `in "1": the cost of a call is unknown`)
			})
			if got := ask(); got.status != http.StatusPaymentRequired || p.Usage().Session.Unpriced != 1 {
				t.Errorf("the next call is answered with %+v, and the usage is %+v", got, p.Usage())
			}
			// The proxy remembers that this model's endpoint reports no usage.
			begin(t, p, "2")
			if got := ask(); got.status != http.StatusPaymentRequired || !strings.Contains(got.body, refusedCall) {
				t.Errorf("the next turn is answered with %+v", got)
			}
			if u.count() != 1 {
				t.Errorf("the endpoint got %d calls", u.count())
			}
			if err := p.SetModel(u.URL, "openai/gpt", key); err != nil {
				t.Fatal(err)
			}
			if got := ask(); got.status != http.StatusOK {
				t.Errorf("another model is answered with %+v", got)
			}
		})
	}
}

func TestAmbiguousRequestsAreRefused(t *testing.T) {
	u := newUpstream(t, answerJSON(chatJSON))
	p := serve(t, u.URL)
	for _, body := range []string{
		`{"model":"dear","Model":"gpt"}`, `{"Model":"gpt"}`, `{"model":"dear","model":"gpt"}`,
		`{"stream":true,"STREAM":false}`, `{"stream":true,"\u017ftream":false}`,
		`{"stream_options":{},"Stream_Options":{"include_usage":true}}`, `[]`, `{"model":5}`, `{"model":"gpt"} x`,
		`{"model":"gpt"`, ``,
	} {
		if got := p.post(t.Context(), "/v1/chat/completions", body); got.status != http.StatusBadRequest {
			t.Errorf("%s: got %+v", body, got)
		}
	}
	if u.count() != 0 {
		t.Errorf("the endpoint got %d calls", u.count())
	}
	p.must(t, "/v1/chat/completions", `{"model":"gpt","stream":true,"stream_options":{"Include_Usage":true}}`)
	if got := u.last(t).body; !strings.Contains(got, `"include_usage":true`) {
		t.Errorf("the endpoint got %s", got)
	}
	p.must(t, "/v1/chat/completions", `{"model":"gpt","stream":null,"messages":[{"model":1,"Model":2}]}`)
}

func TestTheUsageIsCountedWhenTheAgentDisconnects(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"before the answer":                      {"", chatText + chatUsage + chatDone},
		"before its end":                         {chatText, chatUsage + chatDone},
		"before an event without its blank line": {chatText, strings.TrimSpace(chatUsage)},
	} {
		t.Run(name, func(t *testing.T) {
			asked, left := make(chan struct{}), make(chan struct{})
			u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				if c.before != "" {
					_, _ = io.WriteString(w, c.before)
					_ = http.NewResponseController(w).Flush()
				}
				close(asked)
				<-left
				_, _ = io.WriteString(w, c.after)
			})
			p := serve(t, u.URL, func(o *modelproxy.Options) { o.MaxBudget = "1" })
			begin(t, p, "1")
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-asked; cancel() }()
			if got := p.post(ctx, "/v1/chat/completions", `{"model":"gpt","stream":true}`); got.err == nil {
				t.Errorf("got %+v", got)
			}
			close(left)
			eventually(t, "the usage is counted", func() bool { return counts(p.Usage().Turn) == chatCounts })
		})
	}
}

func TestAResponseIsReadForALimitedTimeAfterTheAgentDisconnects(t *testing.T) {
	cancelled := make(chan struct{})
	asked := make(chan struct{})
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(cancelled)
	})
	var h heard
	p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxBudget, o.Linger = "1", time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	p.post(ctx, "/v1/chat/completions", `{"model":"gpt"}`)
	<-cancelled
	eventually(t, "the turn ends", func() bool { return strings.Contains(h.all(), "the cost of a call is unknown") })
}
