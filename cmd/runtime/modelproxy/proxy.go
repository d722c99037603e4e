// Package modelproxy forwards the agent's calls to the session's model. It adds the API key, which
// the agent does not have, and meters usage.
package modelproxy

import (
	"cmp"
	"context"
	"encoding/json"
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
	"github.com/parley-dev/parley/cmd/internal/deadline"
	"github.com/parley-dev/parley/cmd/runtime/reply"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

const (
	// largestRequest bounds a request, in bytes. It is enough for a long conversation with images.
	largestRequest = 32 << 20
	// silence is how long the endpoint may send nothing, before and during a response. It is long,
	// because a reasoning model may pause for minutes. Without streaming, a response begins only
	// when the model has finished.
	silence = 15 * time.Minute
	// linger is how long the proxy keeps reading a response after the agent disconnected, because
	// the usage is at the end of the response. The proxy does so only if there is a budget or a
	// spending limit. linger is short, because a user who stops an agent does not want to pay for
	// more tokens.
	linger = 10 * time.Second
	// limitedLinger replaces linger if there is a spending limit. It is longer, because without the
	// usage the ledger records the highest possible cost of the call.
	limitedLinger = time.Minute
	// patience is how long the agent may take to send one part of a request, or to read one part of
	// a response.
	patience = 2 * time.Minute
	// maxCalls bounds the calls in flight. Further calls wait. Otherwise, many calls could start
	// before the first call's cost is known.
	maxCalls = 8
	// maxHeld bounds the total bytes of all requests in memory, including waiting requests. Further
	// requests are refused.
	maxHeld = maxCalls * largestRequest
)

// Options configure a Proxy.
type Options struct {
	// BaseURL is the endpoint's URL. If it is empty, the public endpoint of the model's provider is
	// used.
	BaseURL string
	// Model is the session's model, in the form provider/model.
	Model string
	// Key is the API key for the endpoint. It may be empty.
	Key string
	// Models contains the prices of models.
	Models session.Models
	// Agent is the agent that calls the model. It may be nil.
	Agent *session.Agent

	// MaxCalls and MaxBudget (in US dollars) limit each turn. Zero and an empty string mean no
	// limit.
	MaxCalls  int64
	MaxBudget string
	// Reached is called at most one time per turn, when the turn reaches a limit.
	Reached func(Limit)
	// Unpriced is called if a budget is set and a call is refused because its cost cannot be known.
	// It is called at most one time per model.
	Unpriced func(reason string)

	// Ledger reports costs to the archive. It may be nil. Limit is the lowest spending limit, or
	// zero if there is none. With a limit, each call needs a reservation in the ledger.
	Ledger Ledger
	Limit  session.Dollars
	// Notice tells the user that a spending limit is near. It may be nil.
	Notice func(text string)

	// Mask masks secrets in requests before they reach the model. It may be nil.
	Mask func(string) string

	// UsageFile is the path of the file in which the usage is stored. If the path is empty, the usage
	// is not stored.
	UsageFile string
	// Busy is called when a call begins. done() is called when the call is over.
	Busy func() (done func())
	Log  *slog.Logger
	// Transport is the transport to the endpoint. If it is nil, the default is used.
	Transport http.RoundTripper
	// For these fields, zero means the default.
	Silence, Linger, Patience, ReserveTimeout time.Duration
	MaxHeld                                   int64
}

// Proxy serves the model to the agent. It requires no key, so it must listen on the loopback
// address.
type Proxy struct {
	options   Options
	target    atomic.Pointer[target]
	transport http.RoundTripper
	mask      *secrets.Store
	spend     *spend
	account   *account
	calls     chan struct{}
	room      *semaphore.Weighted
	// unusable is the error with which the proxy refuses every call, or nil.
	unusable error
}

// target is the session's model and its endpoint. After a change of the model, calls in flight keep
// their old target.
type target struct {
	endpoint *endpoint
	model    string
	key      string
	// unusable is the error with which calls to this target are refused, or nil.
	unusable error
	// answered is set after the endpoint's first response.
	answered atomic.Bool
	// usageRefused is set if the endpoint refused a stream because the proxy had added the option
	// that requests the usage. The proxy does not add this option to later streams.
	usageRefused atomic.Bool
}

// These are the error types of the proxy itself. They differ from the error types of providers.
const (
	limitType       = "parley_limit"
	settingsType    = "parley_settings"
	unreachableType = "parley_unreachable"
)

// wire is the model API that a call uses, with its format of requests and responses.
type wire string

const (
	anthropic wire = "messages"
	chat      wire = "chat completions"
	responses wire = "responses"
)

type route struct {
	wire wire
	// path is the path after the API version.
	path string
	// counted is set if the model generates an answer to the call. Only such calls are metered and
	// limited.
	counted bool
	// model is the model that the path names, or empty.
	model string
}

// routes are the paths that the proxy serves. Routes of OpenAI's APIs are also served without /v1,
// because some SDKs expect /v1 in the base URL and do not add it.
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

func routeOf(r *http.Request) (route, bool) {
	if call, known := routes[r.Method+" "+r.URL.Path]; known {
		return call, true
	}
	return googleRoute(r)
}

// New always returns a proxy. If a setting is invalid, New also returns an error that names the
// setting, and the proxy answers every call with this error.
func New(options Options) (*Proxy, error) {
	options.Silence = cmp.Or(options.Silence, silence)
	if options.Limit > 0 {
		options.Linger = cmp.Or(options.Linger, limitedLinger)
	}
	options.Linger = cmp.Or(options.Linger, linger)
	options.Patience, options.MaxHeld = cmp.Or(options.Patience, patience), cmp.Or(options.MaxHeld, maxHeld)
	options.ReserveTimeout = cmp.Or(options.ReserveTimeout, reserveTimeout)
	spend, err := openSpend(&options)
	p := &Proxy{
		account: newAccount(&options),
		options: options, transport: options.Transport, spend: spend, unusable: err,
		calls: make(chan struct{}, maxCalls), room: semaphore.NewWeighted(options.MaxHeld),
		mask: secrets.New(nil),
	}
	if p.transport == nil {
		p.transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	return p, p.SetModel(options.BaseURL, options.Model, options.Key)
}

// SetModel changes the model of later calls. It returns the same errors as New.
func (p *Proxy) SetModel(baseURL, model, key string) error {
	endpoint, err := locate(baseURL, model)
	if err == nil {
		err = p.unsuitable(endpoint, model)
	}
	if p.unusable != nil {
		err = p.unusable
	}
	p.mask.Add(key)
	p.target.Store(&target{endpoint: endpoint, model: model, key: key, unusable: err})
	p.spend.changeModel()
	return err
}

// BeginTurn begins a turn. Later calls count towards this turn. A resumed turn keeps its earlier
// usage.
func (p *Proxy) BeginTurn(id string) error { return p.spend.beginTurn(id) }

// EndTurn ends the turn. The agent may still call the model before the next turn begins. These
// calls belong to no turn, but they are limited: together, they may use as much as one turn.
func (p *Proxy) EndTurn() error {
	p.account.release()
	return p.spend.beginTurn("")
}

// Finish reports the last costs to the ledger, and retries until ctx ends.
func (p *Proxy) Finish(ctx context.Context) error { return p.account.finish(ctx) }

// Usage returns the usage so far.
func (p *Proxy) Usage() Usage { return p.spend.usage() }

// Counted returns the usage for the journal, or nil if there were no calls.
func (p *Proxy) Counted() json.RawMessage {
	usage := p.spend.usage()
	if usage.Session.Calls == 0 {
		return nil
	}
	text, _ := json.Marshal(usage) // numbers and texts can be encoded
	return text
}

// Restore replaces the usage from the usage file with the usage from the journal if the journal
// contains a higher usage. The file is lost with the workspace, but the journal is restored from
// the archive.
func (p *Proxy) Restore(counted json.RawMessage) error { return p.spend.restore(counted) }

// ServeHTTP forwards and meters a call.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call, known := routeOf(r)
	to := p.target.Load()
	switch {
	case to.unusable != nil:
		refuse(w, call.wire, http.StatusBadRequest, settingsType, to.unusable.Error())
		return
	case !known:
		refuse(w, chat, http.StatusNotFound, "not_found_error", "the session does not serve this path of the model's API")
		return
	case !Local(r):
		refuse(w, call.wire, http.StatusForbidden, "permission_error", "the model is served on the loopback address only")
		return
	case call.wantsJSONList(r.URL.Query()):
		refuse(w, call.wire, http.StatusBadRequest, "invalid_request_error", "the session serves "+streamGenerateContent+
			" only as a stream of events: set alt=sse")
		return
	}
	if !call.counted && r.Header.Get("Anthropic-Version") != "" {
		call.wire = anthropic // both APIs have this path for the list of models
	}
	defer p.options.Busy()()
	p.serve(w, r, call, to)
}

// serve forwards a call as soon as fewer than maxCalls calls are in flight.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, call route, to *target) {
	control := http.NewResponseController(w)
	body := &incoming{body: http.MaxBytesReader(w, r.Body, largestRequest), control: control, patience: p.options.Patience,
		room: p.room}
	defer body.release()
	w = &deadline.Writer{ResponseWriter: w, Timeout: p.options.Patience}
	// Read the body first, and then wait for other calls to end. An http.Server notices that a
	// client disconnected only after the handler has read the body. The call of a disconnected
	// agent would otherwise continue to wait.
	ask, problem := readAsk(body, call, p.options.Mask)
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
		return // the agent disconnected: the answer would be paid for but not read
	}
	entry := &entry{model: ask.model, provider: providerOf(to.model)}
	if call.counted {
		if limit := p.spend.begin(entry, ask.unpriced); limit != nil {
			refuse(w, call.wire, http.StatusPaymentRequired, limitType, limit.Message)
			return
		}
		defer func() {
			p.spend.end(entry)
			p.account.end(entry)
		}()
		if problem := p.reserve(r.Context(), call, to, ask, entry); problem != nil {
			entry.failed = true
			refuse(w, call.wire, problem.status, problem.kind, problem.message)
			return
		}
	}
	p.forward(w, r, call, to, ask, entry)
}

// Local reports whether a request is for a loopback address and does not come from a web page of
// another host.
func Local(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	u, err := url.Parse(origin)
	return loopback(r.Host) && (origin == "" || err == nil && loopback(u.Host))
}

func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

type problem struct {
	status        int
	kind, message string
}

// refuse responds with an error in the format of the model API, which the agent's SDK expects.
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
