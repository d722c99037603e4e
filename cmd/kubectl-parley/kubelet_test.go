package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// kubelet is a stub of a node. It reports the status of a session's pod to the API server, and
// serves logs and forwarded ports.
type kubelet struct {
	t         *testing.T
	node      string
	namespace string
	// logs contains a channel of log lines for each process of the session. The channel of a
	// process is closed when the process ends.
	logs chan chan string
	// backend is the address that forwarded ports lead to.
	backend string

	exec func(command []string) (stdout, stderr string, status metav1.Status)

	mu         sync.Mutex
	forwarding []httpstream.Connection
}

// noPortForward is the backend of a node without port forwarding.
const noPortForward = ""

func newKubelet(t *testing.T, namespace string) *kubelet {
	t.Helper()
	k := &kubelet{t: t, namespace: namespace, node: "node-" + namespace, logs: make(chan chan string, 4)}
	server := httptest.NewTLSServer(k)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	port := server.Listener.Addr().(*net.TCPAddr).Port
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node}}
	create(t, node)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), node) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if err := env.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	return k
}

// process adds a process of the session. The process logs the lines that the caller sends to the
// returned channel.
func (k *kubelet) process() chan<- string {
	lines := make(chan string, 4)
	k.logs <- lines
	return lines
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/containerLogs/"):
		k.print(w, r)
	case strings.HasPrefix(r.URL.Path, "/exec/") && k.exec != nil:
		k.serveExec(w, r)
	case strings.HasPrefix(r.URL.Path, "/portForward/") && k.backend != noPortForward:
		k.forward(w, r)
	default:
		http.NotFound(w, r)
	}
}

// print streams the log of the next process.
func (k *kubelet) print(w http.ResponseWriter, r *http.Request) {
	var lines chan string
	select {
	case lines = <-k.logs:
	case <-r.Context().Done():
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case line, more := <-lines:
			if !more {
				return
			}
			_, _ = io.WriteString(w, line)
			w.(http.Flusher).Flush()
		}
	}
}

// forward serves one forwarded connection, with a stream for errors and a stream for data.
func (k *kubelet) forward(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 8)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	k.mu.Lock()
	k.forwarding = append(k.forwarding, conn)
	k.mu.Unlock()
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				go k.pipe(s)
			} else {
				_ = s.Close()
			}
		}
	}
}

// serveExec runs a command. It sends stdout, stderr and the status over one stream each.
func (k *kubelet) serveExec(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 8)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	stdout, stderr, status := k.exec(r.URL.Query()["command"])
	result, _ := json.Marshal(status)
	texts := map[string]string{corev1.StreamTypeStdout: stdout, corev1.StreamTypeStderr: stderr,
		corev1.StreamTypeError: string(result)}
	for range texts {
		select {
		case s := <-streams:
			_, _ = io.WriteString(s, texts[s.Headers().Get(corev1.StreamType)])
			_ = s.Close()
		case <-conn.CloseChan():
			return
		}
	}
	<-conn.CloseChan()
}

// dropConnections closes all forwarded connections, as the end of a pod does.
func (k *kubelet) dropConnections() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, conn := range k.forwarding {
		_ = conn.Close()
	}
	k.forwarding = nil
}

func (k *kubelet) pipe(s httpstream.Stream) {
	defer s.Close()
	to, err := net.Dial("tcp", k.backend)
	if err != nil {
		return
	}
	defer to.Close()
	go func() { _, _ = io.Copy(to, s) }()
	_, _ = io.Copy(s, to)
}

func (k *kubelet) bind(name string) {
	k.t.Helper()
	if err := fakekubelet.Bind(k.t.Context(), env.Client, k.pod(name), k.node); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubelet) pod(name string) *corev1.Pod {
	k.t.Helper()
	pod := &corev1.Pod{}
	testenv.Await(k.t, func() error {
		if err := env.Client.Get(k.t.Context(), client.ObjectKey{Namespace: k.namespace, Name: v1alpha1.SessionName(name)},
			pod); err != nil {
			return err
		}
		if pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is being deleted", pod.Name)
		}
		return nil
	})
	return pod
}

// report sets the status of a session's container. The times of the pod's conditions are 4 minutes
// in the past. With current times, the operator would wait some seconds before it reports the
// progress of a start in the Conversation.
func (k *kubelet) report(name string, ready corev1.ConditionStatus, session corev1.ContainerStatus) {
	k.t.Helper()
	then := metav1.NewTime(time.Now().Add(-4 * time.Minute))
	session.Name, session.Image = sessionContainer, "example.com/parley:1"
	testenv.Await(k.t, func() error {
		pod := k.pod(name)
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: then},
			{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: then},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: then},
		}
		if session.State.Waiting != nil {
			pod.Status.Phase = corev1.PodPending
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{session}
		return env.Client.Status().Update(k.t.Context(), pod)
	})
}

func (k *kubelet) start(name string) {
	k.t.Helper()
	k.bind(name)
	k.run(name, "first", 0)
}

func (k *kubelet) run(name, process string, restarts int32) {
	k.t.Helper()
	k.report(name, corev1.ConditionTrue, corev1.ContainerStatus{Ready: true, ContainerID: "x://" + process,
		RestartCount: restarts,
		State:        corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
}

func (k *kubelet) end(name, process, termination string) {
	k.t.Helper()
	k.report(name, corev1.ConditionFalse, corev1.ContainerStatus{ContainerID: "x://" + process,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: termination,
			FinishedAt: metav1.Now()}}})
}

// releasePod waits until the pod is being deleted, and then removes it.
func (k *kubelet) releasePod(name string) {
	k.t.Helper()
	testenv.Await(k.t, func() error {
		pod := &corev1.Pod{}
		if err := env.Client.Get(k.t.Context(), client.ObjectKey{Namespace: k.namespace, Name: v1alpha1.SessionName(name)},
			pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		return fakekubelet.Release(k.t.Context(), env.Client, pod)
	})
}
