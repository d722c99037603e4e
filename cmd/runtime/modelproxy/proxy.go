// Package modelproxy forwards the agent's calls to the session's model: it adds the key, which the agent does not
// get, and counts what the agent uses of it.
package modelproxy

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/reply"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

const (
	// largestRequest holds a long conversation with images.
	largestRequest = 32 << 20
	// answerTimeout is how long an endpoint may take to begin with an answer. One that is not
	// streamed begins when the model is done.
	answerTimeout = 30 * time.Minute
	// silence is how long it may send nothing within an answer. A model that thinks may send
	// nothing for minutes.
	silence = 15 * time.Minute
	// linger is how long an answer is read on whose agent has gone, where there is a budget: what
	// was used is told at the end. What comes meanwhile is paid for and read by nobody, so it is
	// short: who stops an agent means to stop the spending.
	linger = 10 * time.Second
	// patience is how long the agent may take to send a piece of its request, or to take one of the
	// answer.
	patience = 2 * time.Minute
	// mostCalls are under way at once. Others wait: else all of them begin before the first has a
	// cost.
	mostCalls = 8
	// mostHeld are the bytes of all requests that are held, those that wait included. More are
	// refused.
	mostHeld = mostCalls * largestRequest
)

// Options of a Proxy.
type Options struct {
	// BaseURL of the endpoint; empty means the public one of the model's provider.
	BaseURL string
	// Model of the session, as provider/model.
	Model string
	// Key for the endpoint; empty where it needs none.
	Key string
	// Models that have a price.
	Models session.Models

	// MaxCalls and MaxBudget, in US dollars, of a turn; zero and empty mean none.
	MaxCalls  int64
	MaxBudget string
	// Reached is called when a turn reaches a limit, once a turn.
	Reached func(Limit)
	// Unpriced is called once if there is a budget, and a call to this model had no price, or did
	// not tell what it used: the budget cannot be kept.
	Unpriced func(model string)

	// UsageFile keeps what was used.
	UsageFile string
	// Busy is called when a call comes in; what it returns, when the call is over.
	Busy func() (done func())
	Log  *slog.Logger
	// Transport to the endpoint, where it is not the usual one.
	Transport http.RoundTripper
	// Times and bounds, where they are not the usual ones.
	Silence, Linger, Patience time.Duration
	MostHeld                  int64
}

// Proxy is the model as the agent sees it. It is for a listener on the loopback address, and asks
// for no key.
type Proxy struct {
	options   Options
	endpoint  *endpoint
	transport http.RoundTripper
	mask      *secrets.Store
	spend     *spend
	// plain is set once the endpoint refused to be asked for the usage of a stream.
	plain atomic.Bool
	// calls has an element for each that is under way.
	calls chan struct{}
	// room for requests.
	room *semaphore.Weighted
	// unusable is why no call is forwarded; nil where calls are.
	unusable error
}

// Types of the errors that are the proxy's own: no provider said them.
const (
	limitType       = "parley_limit"
	settingsType    = "parley_settings"
	unreachableType = "parley_unreachable"
)

// wire is the protocol of a call.
type wire string

const (
	anthropic wire = "messages"
	chat      wire = "chat completions"
	responses wire = "responses"
)

// route is a call that is forwarded.
type route struct {
	wire wire
	// path after the version.
	path string
	// counted calls ask the model for something.
	counted bool
	// model, where the path names it.
	model string
}

// routes of the proxy. An SDK for OpenAI's wires may take the base URL for one that ends in /v1, so
// these are served without it too.
var routes = map[string]route{
	"POST /v1/messages":              {wire: anthropic, path: "/messages", counted: true},
	"POST /v1/messages/count_tokens": {wire: anthropic, path: "/messages/count_tokens"},
	"POST /v1/chat/completions":      {wire: chat, path: "/chat/completions", counted: true},
	"POST /chat/completions":         {wire: chat, path: "/chat/completions", counted: true},
	"POST /v1/responses":             {wire: responses, path: "/responses", counted: true},
	"POST /responses":                {wire: responses, path: "/responses", counted: true},
	"GET /v1/models":                 {wire: chat, path: "/models"},
	"GET /models":                    {wire: chat, path: "/models"},
}

// routeOf a request; false where there is none.
func routeOf(r *http.Request) (route, bool) {
	if call, known := routes[r.Method+" "+r.URL.Path]; known {
		return call, true
	}
	return googleRoute(r)
}

// New is a proxy for the model of the options. Its errors are for the user: they name the setting
// that is wrong.
func New(options Options) (*Proxy, error) {
	endpoint, err := locate(options.BaseURL, options.Model)
	if err != nil {
		return nil, err
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Busy == nil {
		options.Busy = func() func() { return func() {} }
	}
	options.Silence, options.Linger = cmp.Or(options.Silence, silence), cmp.Or(options.Linger, linger)
	options.Patience, options.MostHeld = cmp.Or(options.Patience, patience), cmp.Or(options.MostHeld, mostHeld)
	spend, err := openSpend(&options)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		options: options, endpoint: endpoint, transport: options.Transport, spend: spend,
		calls: make(chan struct{}, mostCalls), room: semaphore.NewWeighted(options.MostHeld),
		mask: secrets.New(map[string]string{session.LLMAPIKeyFile: options.Key}),
	}
	if p.transport == nil {
		usual := http.DefaultTransport.(*http.Transport).Clone()
		usual.ResponseHeaderTimeout = answerTimeout
		p.transport = usual
	}
	return p, nil
}

// BeginTurn counts calls to a turn from now on. A turn that was under way when the session was cut
// off goes on with what it had used.
func (p *Proxy) BeginTurn(id string) error { return p.spend.beginTurn(id) }

// EndTurn ends the turn. What the agent asks for afterwards counts to the session, and has the
// limits of a turn together.
func (p *Proxy) EndTurn() error { return p.spend.beginTurn("") }

// Usage up to now.
func (p *Proxy) Usage() Usage { return p.spend.usage() }

// ServeHTTP forwards a call, and counts it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call, known := routeOf(r)
	switch {
	case p.unusable != nil:
		refuse(w, call.wire, http.StatusBadRequest, settingsType, p.unusable.Error())
		return
	case !known:
		refuse(w, chat, http.StatusNotFound, "not_found_error", "the session serves no such path of the model's API")
		return
	case !Local(r):
		refuse(w, call.wire, http.StatusForbidden, "permission_error", "the model is served on the loopback address only")
		return
	case call.pieces(r.URL.Query()):
		refuse(w, call.wire, http.StatusBadRequest, "invalid_request_error", "the session serves "+streamGenerateContent+
			" as events only: ask for alt=sse")
		return
	}
	if !call.counted && r.Header.Get("Anthropic-Version") != "" {
		call.wire = anthropic // the list of models is asked for in two ways
	}
	defer p.options.Busy()()
	p.serve(w, r, call)
}

// serve a call when it is its turn.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, call route) {
	control := http.NewResponseController(w)
	body := &incoming{body: http.MaxBytesReader(w, r.Body, largestRequest), control: control, patience: p.options.Patience,
		room: p.room}
	defer body.release()
	w = reply.Patient(w, p.options.Patience)
	// Before it waits: the server notices that the agent has gone only once the body is read.
	ask, problem := readAsk(body, call)
	if problem != nil {
		refuse(w, call.wire, problem.status, problem.kind, problem.message)
		return
	}
	select {
	case p.calls <- struct{}{}:
		defer func() { <-p.calls }()
	case <-r.Context().Done():
	}
	if r.Context().Err() != nil {
		return // nobody waits for the answer, and it would be paid for
	}
	entry := &entry{model: ask.model}
	if call.counted {
		if limit := p.spend.begin(entry); limit != nil {
			refuse(w, call.wire, http.StatusPaymentRequired, limitType, limit.Message)
			return
		}
		defer p.spend.settle(entry)
	}
	p.forward(w, r, call, ask, entry)
}

// Unusable answers every call with why the model cannot be used, and counts nothing.
func Unusable(why error) *Proxy { return &Proxy{unusable: why, spend: &spend{options: &Options{}}} }

// Local says whether a request is one of this machine to itself. That of a page, which a browser in
// the session shows, is not.
func Local(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	u, err := url.Parse(origin)
	return loopback(r.Host) && (origin == "" || err == nil && loopback(u.Host))
}

// loopback says whether a host is this machine's own.
func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

// problem is an answer of the proxy itself.
type problem struct {
	status        int
	kind, message string
}

// refuse answers in the shape of the wire, which the agent's SDK understands.
func refuse(w http.ResponseWriter, wire wire, status int, kind, message string) {
	answer := map[string]any{"error": map[string]string{"type": kind, "message": message}}
	switch wire {
	case anthropic:
		answer["type"] = "error"
	case google:
		answer["error"] = map[string]any{"code": status, "message": message, "status": strings.ToUpper(kind)}
	}
	reply.JSON(w, status, answer)
}
