package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	claimTimeout = 8 * time.Second
	// maxKillDelay limits the delay between a session's claim of a warm pod and the kill of a
	// process. Most sessions take longer to start, so such a kill usually happens during the start.
	maxKillDelay = 100 * time.Millisecond
)

// claims tracks the sessions that have claimed a warm pod and are not RUNNING yet. The Secret of
// such a session names the warm pod.
type claims struct {
	mu      sync.Mutex
	running map[types.NamespacedName]bool
	open    map[types.NamespacedName]bool // keyed by Conversation
	made    chan types.NamespacedName
}

func watchClaims(ctx context.Context, c client.WithWatch) *claims {
	all := &claims{running: map[types.NamespacedName]bool{}, open: map[types.NamespacedName]bool{},
		made: make(chan types.NamespacedName, 1)}
	for _, list := range []client.ObjectList{&corev1.SecretList{}, &v1alpha1.ConversationList{}} {
		go func() {
			for cluster.Sleep(ctx, probeInterval) == nil {
				events, err := c.Watch(ctx, list)
				if err != nil {
					continue // the API server may have been killed
				}
				for event := range events.ResultChan() {
					all.see(event.Type == "DELETED", event.Object)
				}
				events.Stop()
			}
		}()
	}
	return all
}

func (a *claims) see(deleted bool, object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		key := client.ObjectKeyFromObject(o)
		if a.running[key] = o.Status.State == v1alpha1.StateRunning && !deleted; a.running[key] || deleted {
			delete(a.open, key)
		}
	case *corev1.Secret:
		owner := metav1.GetControllerOfNoCopy(o)
		if owner == nil || owner.Kind != "Conversation" || !strings.Contains(o.Annotations[v1alpha1.AnnotationPod], "/") {
			return
		}
		key := types.NamespacedName{Namespace: o.Namespace, Name: owner.Name}
		if deleted {
			delete(a.open, key)
			return
		}
		if !a.running[key] && !a.open[key] {
			a.open[key] = true
			select {
			case a.made <- key:
			default:
			}
		}
	}
}

// await waits until a session claims a warm pod, and then for a random time. It reports whether the
// session is then still starting. It returns false if no session claims a warm pod in time.
func (a *claims) await(ctx context.Context, random *rand.Rand) bool {
	select { // discard an old claim
	case <-a.made:
	default:
	}
	delay := time.Duration(random.Int64N(int64(maxKillDelay)))
	if random.IntN(3) == 0 {
		delay = 0
	}
	select {
	case key := <-a.made:
		if cluster.Sleep(ctx, delay) != nil {
			return false
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.open[key]
	case <-time.After(claimTimeout):
	case <-ctx.Done():
	}
	return false
}
