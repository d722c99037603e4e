package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/internal/mixed"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// bindReaders bounds the number of Binds that are read at the same time. bindReadTimeout bounds
	// the time to read one Bind. Clients without the pod's key can send data to the port, too. The
	// limits protect the pod from them.
	bindReaders     = 4
	bindReadTimeout = 5 * time.Second
	// bindWait bounds how long a Bind with the query parameter "wait" waits for the session.
	bindWait = 20 * time.Second
)

// warmPod is a pod that waits for its session.
type warmPod struct {
	env     environment
	key     []byte
	owner   *workspace.Owner
	log     *slog.Logger
	readers chan struct{}
	// certificate is the session's certificate, and handler serves the session. Both are nil until
	// the pod is bound.
	certificate atomic.Pointer[tls.Certificate]
	handler     atomic.Pointer[http.Handler]
	bound       chan struct{} // closed when the pod is bound
	failed      chan error

	mu  sync.Mutex
	run *run // nil until the pod is bound
}

func isWarm() bool { return os.Getenv(session.SecretVariable(session.BindKeyFile)) != "" }

// newWarmPod removes the pod's key from the environment, so that no child process inherits the key.
func newWarmPod(env environment) (*warmPod, error) {
	store, err := secrets.Take(&session.Document{})
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(store.Key(session.BindKeyFile))
	if err != nil || len(key) != session.BindKeySize {
		return nil, errors.New("the bind key is invalid")
	}
	if err := os.MkdirAll(env.workspace, 0o755); err != nil {
		return nil, fmt.Errorf("make the workspace: %w", err)
	}
	owner, err := workspace.OpenOwner(env.workspace, key)
	if err != nil {
		return nil, err
	}
	_, _ = decodeDocument([]byte("{}")) // the first call builds tables, which would delay the session
	return &warmPod{
		env: env, key: key, owner: owner, log: slog.New(slog.NewTextHandler(store.Output(os.Stdout).Lines(""), nil)),
		readers: make(chan struct{}, bindReaders), bound: make(chan struct{}), failed: make(chan error, 1),
	}, nil
}

// runUntil waits for a Bind and then runs the session. The session's certificate is known only
// after the Bind. Until then, TLS handshakes fail.
func (p *warmPod) runUntil(stop <-chan os.Signal, listener net.Listener) (code int, err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+session.BindPath, p.serveBind)
	mux.HandleFunc("/", p.serveSession)
	serveOn(mixed.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: p.getCertificate}), mux)
	rest := time.AfterFunc(restDelay, memory.trim)
	defer rest.Stop()
	select {
	case received := <-stop:
		signal, _ := received.(syscall.Signal)
		return 128 + int(signal), nil
	case err := <-p.failed:
		return 1, err
	case <-p.bound:
		rest.Stop()
		return p.run.runUntil(stop)
	}
}

func (p *warmPod) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if found := p.certificate.Load(); found != nil {
		return found, nil
	}
	return nil, errors.New("the session has no certificate")
}

// serveSession serves the session's endpoints. Until the pod is bound, it serves only liveness and
// readiness.
func (p *warmPod) serveSession(w http.ResponseWriter, r *http.Request) {
	readiness := r.Method == http.MethodGet && r.URL.Path == session.ReadyPath
	free := p.free()
	if readiness && !free && r.URL.Query().Has("wait") {
		p.awaitBind(r.Context())
	}
	serve := p.handler.Load()
	switch {
	case serve != nil:
		(*serve).ServeHTTP(w, r)
	case r.Method == http.MethodGet && r.URL.Path == session.AlivePath:
		writeText(w, http.StatusOK, "alive")
	case readiness && free:
		writeText(w, http.StatusOK, "waiting for a session")
	default:
		w.Header().Set("Retry-After", "1")
		writeText(w, http.StatusServiceUnavailable, "waiting for the session")
	}
}

// free reports whether the pod waits for its first Bind. After a restart of the container, a pod
// that had a session is not free: it waits for a Bind of that session.
func (p *warmPod) free() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owner.Free()
}

func (p *warmPod) awaitBind(ctx context.Context) {
	select {
	case <-p.bound:
	case <-time.After(readyWait):
	case <-ctx.Done():
	}
}

// serveBind binds the pod to a session. It also accepts a repeated Bind of the same session and
// attempt.
func (p *warmPod) serveBind(w http.ResponseWriter, r *http.Request) {
	sealed, code := p.readBind(w, r)
	if code != 0 {
		w.Header().Set("Connection", "close")
		writeText(w, code, http.StatusText(code))
		return
	}
	bind, err := session.OpenBind(p.key, sealed)
	if err != nil {
		writeText(w, http.StatusForbidden, "the bind request is invalid")
		return
	}
	run, code, err := p.assign(bind)
	if err != nil {
		p.log.Error("the pod cannot be bound", "error", err)
		writeText(w, code, err.Error())
		return
	}
	run.beforeExit(func(w http.ResponseWriter, r *http.Request) { p.answerBind(w, r, run, sealed) })(w, r)
}

// answerBind tells the manager that the pod is bound, and whether the session is ready.
func (p *warmPod) answerBind(w http.ResponseWriter, r *http.Request, run *run, sealed []byte) {
	if r.URL.Query().Has("wait") {
		run.awaitReady(r.Context(), bindWait)
	}
	answer, err := session.SealBound(p.key, sealed, &session.Bound{UID: run.doc.UID, Attempt: run.env.attempt,
		Ready: get(run, &run.at) == ready})
	if err != nil {
		writeText(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(answer)
}

// readBind reads a sealed Bind. If it refuses the request, code is the HTTP status of the response.
// Otherwise code is 0.
func (p *warmPod) readBind(w http.ResponseWriter, r *http.Request) (sealed []byte, code int) {
	select {
	case p.readers <- struct{}{}:
	case <-time.After(bindReadTimeout):
		w.Header().Set("Retry-After", "1")
		return nil, http.StatusServiceUnavailable
	case <-r.Context().Done():
		return nil, http.StatusServiceUnavailable
	}
	defer func() { <-p.readers }()
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(bindReadTimeout)); err != nil {
		return nil, http.StatusInternalServerError
	}
	sealed, err := io.ReadAll(http.MaxBytesReader(w, r.Body, session.MaxBind))
	if err == nil {
		err = control.SetReadDeadline(time.Time{})
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, http.StatusRequestEntityTooLarge
	}
	if err != nil {
		return nil, http.StatusBadRequest
	}
	return sealed, 0
}

// assign starts the session of the first Bind. For later Binds of the same session, it returns the
// running session. If it refuses the Bind, code is the HTTP status of the response.
func (p *warmPod) assign(bind *session.Bind) (started *run, code int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		if bind.UID != p.run.doc.UID || bind.Attempt != p.run.env.attempt {
			return nil, http.StatusConflict, errors.New("the pod is bound to another session or attempt")
		}
		return p.run, 0, nil
	}
	doc, err := decodeDocument(bind.Data[session.DocumentFile])
	if err == nil && (bind.UID == "" || doc.UID != bind.UID || bind.Attempt < 1) {
		err = errors.New("the bind request does not match its session document")
	}
	if err != nil {
		return nil, http.StatusForbidden, err
	}
	store := secrets.Bound(bind.Data, doc)
	certificate, err := serverCertificate(store)
	if err != nil {
		return nil, http.StatusForbidden, err
	}
	fresh := p.owner.Free()
	if err := p.owner.Take(fmt.Sprintf("%s/%d", bind.UID, bind.Attempt)); errors.Is(err, workspace.ErrOwned) {
		return nil, http.StatusConflict, err
	} else if err != nil {
		return nil, http.StatusInternalServerError, err
	}
	env, err := p.env.bound(bind)
	if err == nil {
		started = newRun(env, doc, store, os.Stdout)
		started.secured = certificate != nil
		if fresh {
			started.requestRestoration()
		}
		err = started.serveLocally()
	}
	if err != nil {
		p.failed <- err
		return nil, http.StatusInternalServerError, err
	}
	handler := started.handler()
	p.certificate.Store(certificate)
	p.handler.Store(&handler)
	p.run = started
	close(p.bound)
	return started, 0, nil
}

// bound returns the environment of a session in a warm pod. It also sets environment variables of
// this process, so that the agent inherits the same variables as in a cold pod.
func (e environment) bound(bind *session.Bind) (environment, error) {
	e.attempt, e.ran = bind.Attempt, bind.RanAttempt > 0
	e.document = bind.Data[session.DocumentFile]
	err := os.Setenv(session.DocumentDigestVariable, session.DocumentDigest(e.document))
	if bind.Attempt > 1 {
		err = errors.Join(err, os.Setenv(supervise.Attempt, strconv.Itoa(bind.Attempt)))
	}
	if e.ran {
		err = errors.Join(err, os.Setenv(supervise.RanAttempt, strconv.Itoa(bind.RanAttempt)))
	}
	return e, err
}
