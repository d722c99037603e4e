package controllers

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// slowSession serves a warm pod whose session is ready at the third call. Each call adds an element
// to waits: true if the call asks to wait until the session is ready.
func slowSession(t *testing.T, key []byte, waits *[]bool) (port int) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		sealed, _ := io.ReadAll(request.Body)
		bind, err := session.OpenBind(key, sealed)
		if err != nil {
			http.Error(response, err.Error(), http.StatusForbidden)
			return
		}
		*waits = append(*waits, request.URL.Query().Has("wait"))
		answer, _ := session.SealBound(key, sealed, &session.Bound{UID: bind.UID, Attempt: bind.Attempt,
			Ready: len(*waits) == 3})
		_, _ = response.Write(answer)
	}))
	t.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, _ = strconv.Atoi(text)
	return port
}

type onePod struct {
	client.Client
	pod *corev1.Pod
}

func (c onePod) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c.pod.DeepCopyInto(o.(*corev1.Pod))
	return nil
}

func TestOnlyTheFirstBindRequestWaitsUntilTheSessionIsReady(t *testing.T) {
	t.Parallel()
	var waits []bool
	key := make([]byte, session.BindKeySize)
	now := testingclock.NewFakePassiveClock(time.Now())
	c, pod := makeConversation("ns", "c").Obj(), freePod("ns", "class", "warm-1")
	r := newProcess(onePod{pod: pod}, nil)
	r.clock, r.options.SessionPort = now, slowSession(t, key, &waits)
	pod.Status.PodIP = "127.0.0.1"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: lifecycle.SessionContainer,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	var delays []time.Duration
	for range 3 {
		r.bind(c, pod, &corev1.Secret{}, func() (bindKey, error) {
			return func(*corev1.Pod) []byte { return key }, nil
		})
		<-r.calls.Done()
		if retry := r.binds.get(pod.UID).retryAt; !retry.IsZero() {
			delays = append(delays, retry.Sub(now.Now()))
			now.SetTime(retry)
		}
	}
	if !slices.Equal(waits, []bool{true, false, false}) {
		t.Errorf("calls that wait: %v", waits)
	}
	if !slices.Equal(delays, []time.Duration{minBindRetry, 2 * minBindRetry}) {
		t.Errorf("delays: %v", delays)
	}
	if result := r.binds.get(pod.UID); !result.ready {
		t.Errorf("the session is not ready after %d calls", result.calls)
	}
}

func TestAMissingPodKeyDoesNotEndASessionThatRan(t *testing.T) {
	t.Parallel()
	pod := freePod("ns", "class", "warm-1")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: lifecycle.SessionContainer,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	for name, c := range map[string]aConversation{
		"new": makeConversation("ns", "c"), "ran": makeConversation("ns", "c").Ran(0),
	} {
		r := newProcess(onePod{pod: pod}, nil)
		r.bind(c.Obj(), pod, &corev1.Secret{}, func() (bindKey, error) {
			return func(*corev1.Pod) []byte { return nil }, nil
		})
		<-r.calls.Done()
		if refused := r.binds.get(pod.UID).refused; refused != (name == "new") {
			t.Errorf("%s: refused: %t", name, refused)
		}
	}
}
