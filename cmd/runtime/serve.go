package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/mixed"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/events"
	"github.com/parley-dev/parley/cmd/runtime/files"
	"github.com/parley-dev/parley/cmd/runtime/githost"
	"github.com/parley-dev/parley/cmd/runtime/gitproxy"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
	"github.com/parley-dev/parley/cmd/runtime/publish"
	"github.com/parley-dev/parley/cmd/runtime/reply"
	"github.com/parley-dev/parley/cmd/runtime/router"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// readyWait bounds how long a readiness request waits. It is shorter than the probe's timeout.
const readyWait = 4 * time.Second

// handler serves the session's endpoints. Liveness and readiness are public. All other endpoints
// require the session's key or a token.
func (s *run) handler() http.Handler {
	hasKey := keyCheck(s.store.Key(session.KeyFile))
	// mayReadEvents accepts the session's key or the facade's token.
	mayReadEvents := func(r *http.Request) bool {
		if r.Header.Get(session.TokenHeader) != "" {
			return s.hasToken(r)
		}
		return hasKey(r)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+session.AlivePath, func(w http.ResponseWriter, _ *http.Request) { writeText(w, 200, "alive") })
	mux.HandleFunc("GET "+session.ReadyPath, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			s.awaitReady(r.Context(), readyWait)
		}
		code, step := http.StatusOK, get(s, &s.at)
		if step != ready {
			code = http.StatusServiceUnavailable
		}
		writeText(w, code, string(step))
	})
	mux.Handle("GET "+session.StatusPath, authorized(hasKey, serveJSON(func() any { return s.status() })))
	mux.Handle("GET "+session.EventsPath, authorized(mayReadEvents, s.withEvents((*events.Server).List)))
	mux.Handle("GET "+session.StreamPath, authorized(mayReadEvents, s.withEvents((*events.Server).Stream)))
	mux.Handle("POST "+session.EventsPath, authorized(s.hasToken, s.beforeExit(s.withEvents((*events.Server).Add))))
	for route, serve := range map[string]func(*files.Server, http.ResponseWriter, *http.Request){
		"GET " + session.FilesPath: (*files.Server).List, "POST " + session.FilesPath: (*files.Server).Upload,
		"GET " + session.FilePath: (*files.Server).Read, "GET " + session.ZipPath: (*files.Server).Zip,
		"GET " + session.ChangesPath: (*files.Server).Changes, "GET " + session.DiffPath: (*files.Server).Diff,
		"GET " + session.PatchPath: (*files.Server).Patch,
	} {
		mux.Handle(route, authorized(s.hasToken, s.withFiles(serve)))
	}
	mux.Handle("GET "+session.UsagePath, authorized(s.hasToken, serveJSON(func() any { return s.usage() })))
	host, _ := githost.New(s.doc.Repository, s.providerToken()) // a nil host answers with an error
	for path, ask := range map[string]func(context.Context, *githost.Host, *http.Request) (any, error){
		session.GitUserPath: githost.AskUser, session.GitRepositoriesPath: githost.AskRepositories,
		session.GitBranchesPath: githost.AskBranches,
	} {
		mux.Handle("GET "+path, authorized(s.hasToken, githost.Serve(host, ask)))
	}
	mux.Handle("POST "+session.PushPath, authorized(s.hasToken, s.withPublisher((*publish.Server).Push)))
	mux.Handle("POST "+session.PullRequestPath, authorized(s.hasToken, s.withPublisher((*publish.Server).PullRequest)))
	mux.Handle("GET "+session.LeavePath, authorized(s.mayAskToLeave, with(s, &s.driver, s.serveIdle)))
	mux.Handle("POST "+session.LeavePath, authorized(s.mayAskToLeave, s.beforeExit(with(s, &s.driver, s.serveLeave))))
	mux.Handle(session.ToolsPath, authorized(hasKey, s.serveTools()))
	return mux
}

func authorized(check func(*http.Request) bool, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !check(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			reply.Refuse(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		next(w, r)
	})
}

// hasToken checks the facade's token, with which the facade acts for the session's user. The
// session's key is not enough, because the agent's tools may have it.
func (s *run) hasToken(r *http.Request) bool { return s.hasTokenFor(r, session.AudienceSession) }

// mayAskToLeave checks the manager's token.
func (s *run) mayAskToLeave(r *http.Request) bool { return s.hasTokenFor(r, session.AudienceLeave) }

func (s *run) hasTokenFor(r *http.Request, audience string) bool {
	token := r.Header.Get(session.TokenHeader)
	if s.secured && r.TLS == nil {
		return false
	}
	return session.VerifyToken(s.doc.PublicKeys(), token, audience, s.doc.UID, time.Now()) == nil
}

func keyCheck(key string) func(*http.Request) bool {
	// Both hashes have the same length, so the comparison takes constant time.
	want := sha256.Sum256([]byte(key))
	return func(r *http.Request) bool {
		got := sha256.Sum256([]byte(presentedKey(r)))
		return key != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1
	}
}

// with() returns a handler that serves requests as soon as this part of the session
// exists. Before that, it responds with status 503.
func with[T any](s *run, part **T, serve func(*T, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if found := get(s, part); found != nil {
			serve(found, w, r)
			return
		}
		w.Header().Set("Retry-After", "1")
		writeText(w, http.StatusServiceUnavailable, string(get(s, &s.at)))
	}
}

// withEvents serves requests as soon as the session has a driver. A session with a driver also has
// a journal.
func (s *run) withEvents(serve func(*events.Server, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return with(s, &s.driver, func(d *driver.Driver, w http.ResponseWriter, r *http.Request) {
		serve(&events.Server{Journal: s.journal, Driver: d, Stopping: s.stopping}, w, r)
	})
}

// withFiles serves requests as soon as the workspace is prepared.
func (s *run) withFiles(serve func(*files.Server, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return with(s, &s.files, func(found *files.Server, w http.ResponseWriter, r *http.Request) {
		defer s.activity.begin()() // a user who reads files keeps the session active
		serve(found, w, r)
	})
}

func (s *run) serveTools() http.HandlerFunc { return with(s, &s.router, (*router.Router).ServeHTTP) }

func serveJSON(answer func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { reply.JSON(w, http.StatusOK, answer()) }
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n"))
}

func presentedKey(r *http.Request) string {
	if key := r.Header.Get("X-Session-API-Key"); key != "" {
		return key
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// awaitReady waits until the session is ready, but not longer than the timeout. A waiting probe
// succeeds as soon as the session is ready. After a failed probe, the kubelet would wait a second
// before the next probe.
func (s *run) awaitReady(ctx context.Context, timeout time.Duration) {
	select {
	case <-s.readied:
	case <-s.over:
	case <-s.stopping:
	case <-time.After(timeout):
	case <-ctx.Done():
	}
}

// secure makes the listener also accept TLS if the session has a certificate. Probes and clients
// with the session's key may still use plain HTTP.
func (s *run) secure(listener net.Listener) (net.Listener, error) {
	pair, err := serverCertificate(s.store)
	if pair == nil {
		return listener, err
	}
	s.secured = true
	return mixed.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{*pair}}), nil
}

// serverCertificate returns the session's certificate, or nil if it has none.
func serverCertificate(store *secrets.Store) (*tls.Certificate, error) {
	text := []byte(store.Value(session.ServerCertificateFile))
	if len(text) == 0 {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, errors.New("the session's certificate is invalid") // the cause might quote the key
	}
	return &pair, nil
}

// serve serves the session's endpoints. It also starts the loopback server that the agent uses.
func (s *run) serve(listener net.Listener) error {
	if err := s.serveLocally(); err != nil {
		return err
	}
	listener, err := s.secure(listener)
	if err != nil {
		return err
	}
	serveOn(listener, s.handler())
	return nil
}

// serveOn serves on a listener. It sets no write timeout, because a tool call may take long.
func serveOn(listener net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	go func() { _ = server.Serve(listener) }()
}

// usageFile is the path of the recorded usage, relative to the workspace.
const usageFile = ".parley/usage.json"

func (s *run) modelOptions() modelproxy.Options {
	settings := &s.doc.Settings
	mask := s.store.Mask
	if ptr.Deref(settings.ExposeSecretsToModel, false) {
		mask = nil
	}
	pays := session.ReadSpendClaims(s.archiveTokens())
	var ledger modelproxy.Ledger
	if pays != nil {
		ledger = s.reportCosts
	}
	return modelproxy.Options{
		Ledger: ledger, Limit: pays.Lowest(), Notice: s.nearLimit,
		BaseURL: s.llm.BaseURL, Model: s.llm.Model, Key: s.llm.Key, Agent: s.doc.Agent,
		Models: s.doc.Models, MaxCalls: int64(ptr.Deref(settings.MaxIterations, v1alpha1.DefaultMaxIterations)),
		MaxBudget: ptr.Deref(settings.MaxBudgetPerTask, ""),
		Reached:   s.limited, Unpriced: s.unpriced, Mask: mask,
		UsageFile: filepath.Join(s.env.workspace, usageFile), Busy: s.activity.begin, Log: s.log,
	}
}

// serveLocally starts the server through which the agent reaches the model, the tools and the git
// host. The agent must not have the session's key, so this server does
// not require it. It listens on a loopback address, which cannot be reached from outside the pod.
func (s *run) serveLocally() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	if s.model, err = modelproxy.New(s.modelOptions()); err != nil && s.llm.Model != "" {
		s.log.Error("the model cannot be used", "error", err)
	}
	mux.Handle("/", s.model)
	tools := s.serveTools()
	mux.HandleFunc(session.ToolsPath, func(w http.ResponseWriter, r *http.Request) {
		if !modelproxy.Local(r) {
			writeText(w, http.StatusForbidden, "the tools are only served on the loopback address")
			return
		}
		tools(w, r)
	})
	s.local = "http://" + listener.Addr().String()
	git := s.gitProxy()
	s.gitURL, s.gitHeader = git.At(s.local)
	mux.Handle(gitproxy.Prefix, git)
	serveOn(listener, mux)
	return nil
}

// gitProxy returns the proxy for the repository's host, or nil if the session has no token for it.
func (s *run) gitProxy() *gitproxy.Proxy {
	if s.doc.Repository == nil {
		return nil
	}
	remote, err := workspace.Locate(s.doc.Repository)
	if err != nil { // the preparation of the workspace fails with the same error and ends the session
		return nil
	}
	return gitproxy.New(gitproxy.Options{Remote: remote, Token: s.providerToken(), Mask: s.store.Mask,
		Busy: s.activity.begin})
}
