package controllers

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// leavingSession serves LeavePath with the certificate of its session, as the runtime does. It ends
// its pod when it leaves.
type leavingSession struct {
	kubelet
	uid string

	mu sync.Mutex
	// idle is how long the session has been idle; negative means that it is not idle. If busy is
	// set, the session refuses to leave.
	idle float64
	busy bool
	// calls contains the HTTP method of each call that the session received.
	calls []string
}

func startLeavingSession(t *testing.T, namespace, name string, idle float64) *leavingSession {
	t.Helper()
	s := &leavingSession{kubelet: kubelet{t, namespace, name}, idle: idle,
		uid: string(getConversation(t, namespace, name).UID)}
	address := fmt.Sprintf("127.%d.%d.%d", 192+rand.IntN(32), rand.IntN(256), 1+rand.IntN(254))
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(session.Port)))
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.SessionName(name)}, secret)
	})
	pem := secret.Data[session.ServerCertificateFile]
	certificate, err := tls.X509KeyPair(pem, pem)
	if err != nil {
		t.Fatal(err)
	}
	document := &session.Document{}
	if err := json.Unmarshal(secret.Data[session.DocumentFile], document); err != nil {
		t.Fatal(err)
	}
	served := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := session.VerifyToken(document.PublicKeys(), r.Header.Get(session.TokenHeader), session.AudienceLeave, s.uid,
			time.Now()); err != nil || r.URL.Path != session.LeavePath {
			t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		}
		s.serve(w, r)
	}))
	served.Listener = listener
	served.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	served.StartTLS()
	t.Cleanup(served.Close)
	s.bind()
	s.set(func(p aPod) {
		p.Ready()
		p.Status.PodIP, p.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	})
	awaitState(t, namespace, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	return s
}

func (s *leavingSession) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.Method)
	if r.Method == http.MethodPost {
		if s.busy || s.idle < 0 {
			w.WriteHeader(http.StatusConflict)
			return
		}
		s.idle = -1
		go s.end(`{"reason":"Idle","message":"Ended to make room"}`)
	}
	_ = json.NewEncoder(w).Encode(session.Leave{Idle: s.idle >= 0, IdleSeconds: max(0, s.idle)})
}

func (s *leavingSession) becomeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle, s.busy = minIdleTime.Seconds(), false
}

func (s *leavingSession) called() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, " ")
}

func TestTheSessionThatWasIdleLongestGivesUpItsSlot(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](4)})
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	sessions := map[string]*leavingSession{}
	for name, idle := range map[string]float64{"working": -1, "short": 10, "long": 100, "longest": 1000} {
		create(t, makeConversation(ns, name).With(ofClass(class)).Obj())
		sessions[name] = startLeavingSession(t, ns, name, idle)
	}
	sessions["longest"].mu.Lock()
	sessions["longest"].busy = true // a message arrives between the two calls
	sessions["longest"].mu.Unlock()
	for name, s := range sessions {
		if got := s.called(); got != "" {
			t.Errorf("%s is called while nobody waits: %s", name, got)
		}
	}
	create(t, makeConversation(ns, "waiting").With(ofClass(class)).Obj())
	ended := awaitState(t, ns, "long", v1alpha1.StateStopped, v1alpha1.ReasonIdle)
	if ended.Status.Message != "Ended to make room" {
		t.Errorf("the message is %q", ended.Status.Message)
	}
	kubelet{t, ns, "waiting"}.start()
	awaitState(t, ns, "waiting", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	for name, want := range map[string]string{"working": "GET", "short": "GET", "long": "GET POST",
		"longest": "GET POST"} {
		if got := sessions[name].called(); got != want {
			t.Errorf("%s got the calls %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"working", "short", "longest"} {
		awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
}

func TestASessionThatBecomesIdleGivesUpItsSlot(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](2)})
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "foreign").With(ofClass(class)).Obj())
	// The session "foreign" does not answer, like a session with a third-party runtime.
	foreign := kubelet{t, ns, "foreign"}
	foreign.bind()
	foreign.set(func(p aPod) {
		p.Ready()
		p.Status.PodIP, p.Status.PodIPs = "127.191.0.1", []corev1.PodIP{{IP: "127.191.0.1"}}
	})
	create(t, makeConversation(ns, "own").With(ofClass(class)).Obj())
	own := startLeavingSession(t, ns, "own", -1)
	create(t, makeConversation(ns, "waiting").With(ofClass(class)).Obj())
	queued := awaitState(t, ns, "waiting", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if !strings.Contains(queued.Status.Message, "If a session of this user is idle, it is stopped to make room") {
		t.Errorf("the message is %q", queued.Status.Message)
	}
	await(t, func() error {
		if own.called() == "" {
			return errors.New("the session was not asked")
		}
		return nil
	})
	own.becomeIdle()
	awaitState(t, ns, "own", v1alpha1.StateStopped, v1alpha1.ReasonIdle)
	kubelet{t, ns, "waiting"}.start()
	awaitState(t, ns, "waiting", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	awaitState(t, ns, "foreign", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

func TestAtMostOneSessionGivesUpItsSlotForEachWaitingSession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](4)})
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	for i := range 4 {
		name := fmt.Sprintf("idle-%d", i)
		create(t, makeConversation(ns, name).With(ofClass(class)).Obj())
		startLeavingSession(t, ns, name, float64(10+i))
	}
	for _, name := range []string{"first", "second"} {
		create(t, makeConversation(ns, name).With(ofClass(class)).Obj())
	}
	for _, name := range []string{"first", "second"} {
		kubelet{t, ns, name}.start()
		awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	for _, name := range []string{"idle-0", "idle-1"} {
		awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	for _, name := range []string{"idle-2", "idle-3"} {
		awaitState(t, ns, name, v1alpha1.StateStopped, v1alpha1.ReasonIdle)
	}
}

// After the last event of a turn, a user may be about to answer. A session is therefore not asked
// to end before it has been idle for minIdleTime.
func TestARecentlyUsedSessionKeepsItsSlot(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "used").With(ofClass(class)).Obj())
	used := startLeavingSession(t, ns, "used", 0.5)
	create(t, makeConversation(ns, "waiting").With(ofClass(class)).Obj())
	await(t, func() error {
		if calls := used.called(); !strings.HasPrefix(calls, "GET GET") {
			return fmt.Errorf("the calls are %q", calls)
		}
		return nil
	})
	if calls := used.called(); strings.Contains(calls, "POST") {
		t.Errorf("the calls are %q", calls)
	}
	used.becomeIdle()
	awaitState(t, ns, "used", v1alpha1.StateStopped, v1alpha1.ReasonIdle)
}
