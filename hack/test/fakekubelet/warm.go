package fakekubelet

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// WarmPods is a stub of the runtime in warm pods: it serves session.BindPath for all warm pods of a
// kubelet, and starts no session. Each warm pod has its own loopback address.
type WarmPods struct {
	// Address is the address at which the stub listens for all pods, such as ":0". If it is empty,
	// the stub listens on the address of each pod, at the port of sessions, as real sessions do.
	Address string
	// Delay is the time that a session takes to become ready after its first Bind.
	Delay time.Duration
	// Answer chooses the answer to a Bind that the pod's key decrypts and that is not a conflict. If
	// Answer is nil, the stub accepts every such Bind.
	Answer func(pod types.NamespacedName, uid types.UID, bind *session.Bind) Answer
	// Conflict, if set, is called for each Bind to a pod that is bound to another session or
	// attempt.
	Conflict func(pod types.NamespacedName, uid types.UID, bind *session.Bind)

	listener net.Listener
	server   *http.Server
	// bound is called after each Bind that was answered with status 200.
	bound func(pod types.NamespacedName)
	mu    sync.Mutex
	pods  map[string]*warmPod // keyed by address
	next  int
}

// Answer is the stub's answer to a Bind.
type Answer int

// Answers to a Bind.
const (
	// Accept binds the pod.
	Accept Answer = iota
	// Refuse answers 409, like a pod that is bound to another session.
	Refuse
	// Lose binds the pod and closes the connection without an answer.
	Lose
	// Fail answers 503 and does not bind the pod.
	Fail
)

type warmPod struct {
	name types.NamespacedName
	uid  types.UID
	key  []byte
	// bound is the first Bind that this container accepted, or nil.
	bound *session.Bind
	ready time.Time
	// listener is nil if one listener serves all pods.
	listener net.Listener
}

// Port returns the port that the stub listens on.
func (w *WarmPods) Port() int { return w.listener.Addr().(*net.TCPAddr).Port }

// listen starts the server that receives Binds. The server stops when the context ends.
func (w *WarmPods) listen(ctx context.Context) (err error) {
	w.pods = map[string]*warmPod{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+session.BindPath, w.serve)
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: callTimeout}
	context.AfterFunc(ctx, func() { _ = w.server.Close() })
	if w.Address == "" {
		return nil
	}
	// One listener receives the Binds for all warm pods, and each pod has its own loopback address.
	// The listener must therefore listen on all addresses of the machine. serve() refuses
	// requests to an address that no warm pod has.
	if w.listener, err = net.Listen("tcp4", w.Address); err != nil {
		return err
	}
	go func() { _ = w.server.Serve(w.listener) }()
	return nil
}

func isWarm(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelWarm] != "" }

func (w *WarmPods) knows(pod *corev1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.pods[pod.Status.PodIP]
	return known != nil && known.uid == pod.UID
}

// add serves the Binds of a pod and returns its address. It fails until the pod's Secret exists,
// because the container gets variables from this Secret and cannot start without it.
func (w *WarmPods) add(ctx context.Context, c client.Client, pod *corev1.Pod) (string, error) {
	secret := &corev1.Secret{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(pod), secret); err != nil {
		return "", fmt.Errorf("read the Secret of a warm pod: %w", err)
	}
	key, err := base64.StdEncoding.DecodeString(string(secret.Data[session.BindKeyFile]))
	if err != nil {
		return "", fmt.Errorf("read the key of a warm pod: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	added := &warmPod{name: client.ObjectKeyFromObject(pod), uid: pod.UID, key: key}
	address := pod.Status.PodIP
	for address == "" || w.pods[address] != nil || !w.serveAt(address, added) {
		w.next++
		address = fmt.Sprintf("127.%d.%d.%d", 64+w.next>>16&63, w.next>>8&255, w.next&255)
	}
	w.pods[address] = added
	return address, nil
}

// serveAt listens on the address, unless one listener serves all pods. It returns false if the
// address is in use.
func (w *WarmPods) serveAt(address string, pod *warmPod) bool {
	if w.listener != nil {
		return true
	}
	var err error
	if pod.listener, err = net.Listen("tcp4", net.JoinHostPort(address, strconv.Itoa(session.Port))); err != nil {
		return false
	}
	go func() { _ = w.server.Serve(pod.listener) }()
	return true
}

func (w *WarmPods) forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for address, pod := range w.pods {
		if pod.name == name {
			delete(w.pods, address)
			if pod.listener != nil {
				_ = pod.listener.Close()
			}
		}
	}
}

func (w *WarmPods) serve(response http.ResponseWriter, request *http.Request) {
	address := request.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).IP.String()
	sealed, err := io.ReadAll(io.LimitReader(request.Body, session.MaxBind+1))
	if err != nil {
		return
	}
	w.mu.Lock()
	pod := w.pods[address]
	w.mu.Unlock()
	if pod == nil || len(sealed) > session.MaxBind {
		http.Error(response, "no warm pod has this address", http.StatusNotFound)
		return
	}
	bind, err := session.OpenBind(pod.key, sealed)
	if err != nil {
		http.Error(response, err.Error(), http.StatusForbidden)
		return
	}
	ready, code := w.bind(pod, bind)
	if code == 0 {
		panic(http.ErrAbortHandler) // closes the connection
	}
	if code != http.StatusOK {
		http.Error(response, http.StatusText(code), code)
		return
	}
	bound := &session.Bound{UID: bind.UID, Attempt: bind.Attempt, Ready: time.Now().After(ready)}
	if request.URL.Query().Has("wait") {
		select {
		case <-time.After(time.Until(ready)):
			bound.Ready = true
		case <-request.Context().Done():
			return
		}
	}
	if answer, err := session.SealBound(pod.key, sealed, bound); err == nil {
		_, _ = response.Write(answer)
	}
	w.bound(pod.name)
}

// bind returns the time at which the session becomes ready, and the HTTP status of the answer. The
// status is 0 if the stub sends no answer.
func (w *WarmPods) bind(pod *warmPod, bind *session.Bind) (ready time.Time, code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod.bound != nil && (pod.bound.UID != bind.UID || pod.bound.Attempt != bind.Attempt) {
		if w.Conflict != nil {
			w.Conflict(pod.name, pod.uid, bind)
		}
		return ready, http.StatusConflict
	}
	answer := Accept
	if w.Answer != nil {
		answer = w.Answer(pod.name, pod.uid, bind)
	}
	switch answer {
	case Refuse:
		return ready, http.StatusConflict
	case Fail:
		return ready, http.StatusServiceUnavailable
	}
	if pod.bound == nil {
		pod.bound, pod.ready = bind, time.Now().Add(w.Delay)
	}
	if answer == Lose {
		return ready, 0
	}
	return pod.ready, http.StatusOK
}

// Restart reports a crash and a restart of a pod's container. A warm pod forgets its Bind, and
// waits for the next Bind.
func (k *Kubelet) Restart(ctx context.Context, name types.NamespacedName) error {
	pod := &corev1.Pod{}
	if err := k.Client.Get(ctx, name, pod); err != nil {
		return err
	}
	if k.Warm != nil && isWarm(pod) {
		k.Warm.forget(name)
		if _, err := k.Warm.add(ctx, k.Client, pod); err != nil {
			return err
		}
	}
	now := metav1.Now()
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		status.RestartCount++
		status.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
			Reason: "Error", FinishedAt: now}}
		status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	}
	return k.Client.Status().Update(ctx, pod)
}
