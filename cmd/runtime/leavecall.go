package main

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

// serveIdle answers whether the session could make room for another session of its user.
func (s *run) serveIdle(d *driver.Driver, w http.ResponseWriter, _ *http.Request) {
	reply.JSON(w, http.StatusOK, s.idleness(d.CanLeave() && s.mayLeave()))
}

// serveLeave ends an idle session, to make room for another session of its user.
func (s *run) serveLeave(d *driver.Driver, w http.ResponseWriter, _ *http.Request) {
	if !d.Leave(s.mayLeave) {
		reply.JSON(w, http.StatusConflict, s.idleness(false))
		return
	}
	reply.JSON(w, http.StatusOK, s.idleness(true))
}

// mayLeave reports whether the session has started, is inactive, and can end without a loss of its
// work. If the session runs on scratch space, its files and its journal must be in the archive,
// because the scratch space is deleted when the session ends.
func (s *run) mayLeave() bool {
	if !get(s, &s.begun) || s.activity.busy() {
		return false
	}
	return !s.doc.Scratch || get(s, &s.keeper).Complete() && get(s, &s.snapshots).current()
}

// beforeExit lets the process exit only after it has sent the response. Without a response, the
// client would not know whether its request was accepted.
func (s *run) beforeExit(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.answering.RLock()
		defer s.answering.RUnlock()
		whole := &wholeResponse{ResponseWriter: w, code: http.StatusOK}
		next(whole, r)
		w.Header().Set("Content-Length", strconv.Itoa(whole.body.Len()))
		w.WriteHeader(whole.code)
		_, _ = w.Write(whole.body.Bytes())
		_ = http.NewResponseController(w).Flush()
	}
}

// wholeResponse buffers a small response, so that beforeExit can set its Content-Length. Without
// this header, HTTP would send the response in chunks. A flush does not send the final chunk, so
// the process could exit before the response is complete.
type wholeResponse struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (w *wholeResponse) WriteHeader(code int) { w.code = code }

func (w *wholeResponse) Write(text []byte) (int, error) { return w.body.Write(text) }

// responseTimeout bounds how long the exit waits for responses.
const responseTimeout = time.Second

// awaitResponses waits until all handlers that beforeExit wraps have sent their responses.
func (s *run) awaitResponses() {
	sent := make(chan struct{})
	go func() {
		s.answering.Lock()
		close(sent)
	}()
	select {
	case <-sent:
	case <-time.After(responseTimeout):
	}
}

func (s *run) idleness(idle bool) session.Leave {
	if !idle {
		return session.Leave{}
	}
	return session.Leave{Idle: true, IdleSeconds: s.activity.idle().Seconds()}
}
