package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/events"
	"github.com/parley-dev/parley/cmd/runtime/files"
	"github.com/parley-dev/parley/cmd/runtime/githost"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

// readyWait is a little less than the probe's time limit.
const readyWait = 4 * time.Second

// handler serves the session's endpoints. Whether it lives and is ready anybody may ask; the rest
// needs the key.
func (s *run) handler() http.Handler {
	key := s.store.Key(session.KeyFile)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+session.AlivePath, func(w http.ResponseWriter, _ *http.Request) { writeText(w, 200, "alive") })
	mux.HandleFunc("GET "+session.ReadyPath, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			s.awaitReady(r.Context())
		}
		code, step := http.StatusOK, get(s, &s.at)
		if step != ready {
			code = http.StatusServiceUnavailable
		}
		writeText(w, code, string(step))
	})
	mux.Handle("GET "+session.StatusPath, authenticated(key, serveJSON(func() any { return s.status() })))
	mux.Handle("GET "+session.EventsPath, s.reader(key, (*events.Server).List))
	mux.Handle("GET "+session.StreamPath, s.reader(key, (*events.Server).Stream))
	mux.Handle("POST "+session.EventsPath, s.facadeOnly(s.withEvents((*events.Server).Add)))
	for route, serve := range map[string]func(*files.Server, http.ResponseWriter, *http.Request){
		"GET " + session.FilesPath: (*files.Server).List, "POST " + session.FilesPath: (*files.Server).Upload,
		"GET " + session.FilePath: (*files.Server).Read, "GET " + session.ZipPath: (*files.Server).Zip,
		"GET " + session.ChangesPath: (*files.Server).Changes, "GET " + session.DiffPath: (*files.Server).Diff,
		"GET " + session.PatchPath: (*files.Server).Patch,
	} {
		mux.Handle(route, s.facadeOnly(s.withFiles(serve)))
	}
	mux.Handle("GET "+session.UsagePath, s.facadeOnly(serveJSON(func() any { return s.usage() })))
	host, _ := githost.New(s.doc.Repository, s.providerToken()) // without one that is what is answered
	for path, ask := range map[string]func(context.Context, *githost.Host, *http.Request) (any, error){
		session.GitUserPath: githost.AskUser, session.GitRepositoriesPath: githost.AskRepositories,
		session.GitBranchesPath: githost.AskBranches,
	} {
		mux.Handle("GET "+path, s.facadeOnly(githost.Serve(host, ask)))
	}
	mux.Handle(session.ToolsPath, authenticated(key, http.HandlerFunc(s.serveTools)))
	return mux
}

// reader serves who has the session's key, or a token of the facade.
func (s *run) reader(key string, serve func(*events.Server, http.ResponseWriter, *http.Request)) http.Handler {
	withKey, withToken := authenticated(key, s.withEvents(serve)), s.facadeOnly(s.withEvents(serve))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(session.TokenHeader) != "" {
			withToken.ServeHTTP(w, r)
			return
		}
		withKey.ServeHTTP(w, r)
	})
}

// facadeOnly serves the facade, which speaks for the session's user. The session's key does not do:
// the agent's tools may have it.
func (s *run) facadeOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get(session.TokenHeader)
		if session.VerifyToken(s.doc.PublicKey, token, session.AudienceSession, s.doc.UID, time.Now()) != nil {
			unauthorized(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withEvents serves once the session has its journal and an agent to drive.
func (s *run) withEvents(serve func(*events.Server, http.ResponseWriter, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := get(s, &s.driver)
		if d == nil {
			s.refuseYet(w)
			return
		}
		serve(&events.Server{Journal: s.journal, Driver: d, Stopping: s.stopping}, w, r)
	})
}

// withFiles serves once the workspace is prepared.
func (s *run) withFiles(serve func(*files.Server, http.ResponseWriter, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found := get(s, &s.files)
		if found == nil {
			s.refuseYet(w)
			return
		}
		defer s.activity.begin()() // somebody looks, so the session is not idle
		serve(found, w, r)
	})
}

func (s *run) serveTools(w http.ResponseWriter, r *http.Request) {
	if router := get(s, &s.router); router != nil {
		router.ServeHTTP(w, r)
		return
	}
	s.refuseYet(w)
}

// refuseYet answers what cannot be served before the session has come further.
func (s *run) refuseYet(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	writeText(w, http.StatusServiceUnavailable, string(get(s, &s.at)))
}

func serveJSON(answer func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reply.JSON(w, http.StatusOK, answer())
	})
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n"))
}

// authenticated asks for the session's key.
func authenticated(key string, next http.Handler) http.Handler {
	// Of equal length, so that comparing them takes the same time whatever was sent.
	want := sha256.Sum256([]byte(key))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(presentedKey(r)))
		if key == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			unauthorized(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	reply.Refuse(w, http.StatusUnauthorized, "Unauthorized")
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

// awaitReady waits until the session is ready, but no longer than a probe does. A kubelet that is
// told no asks again a second later; one that waits for the answer knows at once.
func (s *run) awaitReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	select {
	case <-s.readied:
	case <-s.stopping:
	case <-ctx.Done():
	}
}

// serveOn a listener. Answers may take as long as a tool does, so nothing limits them.
func (s *run) serveOn(listener net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	go func() { _ = server.Serve(listener) }()
}
