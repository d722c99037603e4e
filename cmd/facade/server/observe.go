package server

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

type metrics struct {
	requests     *prometheus.CounterVec
	durations    *prometheus.HistogramVec
	authFailures prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "parley_facade_requests_total", Help: "Requests by route and status code.",
		}, []string{"route", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "parley_facade_request_duration_seconds", Help: "Duration of requests by route.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		authFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "parley_facade_auth_failures_total", Help: "Requests without a valid credential.",
		}),
	}
	registry.MustRegister(m.requests, m.durations, m.authFailures)
	return m
}

const requestIDHeader = "X-Request-ID"

var validRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

type recorderKey struct{}

// noted contains facts about a request that its handler records for the log line and the audit
// entry.
type noted struct {
	// user is empty if the request was not authenticated.
	user       types.NamespacedName
	credential auth.Credential
	// conversation is the ID of a new conversation. action is the kind of the event that the
	// request sends to a session.
	conversation, action string
}

func note(r *http.Request, change func(*noted)) {
	if recorder, observed := r.Context().Value(recorderKey{}).(*recorder); observed {
		change(&recorder.noted)
	}
}

// observed gives each request an ID, counts it, measures its duration and logs it without body,
// query or headers.
func (s *server) observed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := r.Header.Get(requestIDHeader)
		if !validRequestID.MatchString(id) {
			id = rand.Text()
		}
		w.Header().Set(requestIDHeader, id)
		recorder := &recorder{ResponseWriter: w}
		log := logf.FromContext(r.Context()).WithName("http").WithValues("request", id)
		r = r.WithContext(logf.IntoContext(context.WithValue(r.Context(), recorderKey{}, recorder), log))
		defer func() {
			failed := recover()
			aborted := failed == http.ErrAbortHandler //nolint:errorlint // this error is never wrapped
			if failed != nil && !aborted {
				log.Error(nil, "A handler panicked", "stack", string(debug.Stack()))
				if recorder.code == 0 {
					answer.Write(recorder, nil, errPanicked)
				}
			}
			s.finish(r, recorder, log, time.Since(start))
			if aborted {
				panic(failed) // the server closes the connection: the response is incomplete
			}
		}()
		next.ServeHTTP(recorder, r)
	})
}

// errPanicked makes the response an internal server error.
var errPanicked = errors.New("a handler panicked")

// finish counts each finished request. It audits only changes, and does not log successful probes.
func (s *server) finish(r *http.Request, answered *recorder, log logr.Logger, took time.Duration) {
	route := "none" // not the path, which may contain anything
	if r.Pattern != "" && r.Pattern != "/" {
		route = r.Pattern
	}
	s.metrics.requests.WithLabelValues(route, strconv.Itoa(answered.code)).Inc()
	s.metrics.durations.WithLabelValues(route).Observe(took.Seconds())
	s.auditRequest(r, route, answered)
	if isProbe(route) && answered.code < http.StatusBadRequest {
		return
	}
	if answered.user.Name != "" {
		log = log.WithValues("user", answered.user.String())
	}
	log.Info("Served", "method", methodOf(r), "route", route, "code", answered.code, "bytes", answered.bytes,
		"seconds", took.Seconds(), "from", r.RemoteAddr)
}

func isProbe(route string) bool {
	return slices.Contains([]string{"GET /alive", "GET /health", "GET /ready"}, route)
}

// methodOf returns the method, or "other" for a non-standard method.
func methodOf(r *http.Request) string {
	if slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, r.Method) {
		return r.Method
	}
	return "other"
}

// recorder records the status and the length of the response. It also contains the handler's facts
// about the request.
type recorder struct {
	http.ResponseWriter
	noted
	code  int
	bytes int
}

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(data []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(data)
	r.bytes += n
	return n, err
}

// Unwrap gives http.ResponseController access to the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
