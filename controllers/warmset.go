package controllers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// warmSet tracks the warm pods without a session, so that a claim costs no search. It follows the
// events of the cache, and remembers the claims of this process that the cache does not show yet.
type warmSet struct {
	mu    sync.Mutex
	pods  map[types.UID]*warmPod
	pools map[poolKey]map[types.UID]*warmPod
	// ready contains the pods that a session may claim, keyed by the hash of their template.
	ready map[readyKey]map[types.UID]*warmPod
	// claims maps a session to the pod that this process claimed for it.
	claims map[types.NamespacedName]types.UID
	// expected contains the pods that this process created and that are not in the cache yet, with
	// their creation times.
	expected map[poolKey]map[string]time.Time
	// claimed contains the time of the last claim in each pool.
	claimed map[poolKey]time.Time
	synced  func() bool
	// removed is called with the UID of each deleted pod.
	removed func(types.UID)
	// updated is called with each changed pod, after the change is in the set.
	updated atomic.Pointer[func(*corev1.Pod)]
}

type poolKey struct{ namespace, class string }

type readyKey struct {
	poolKey
	hash string
}

type warmPod struct {
	readyKey
	name            string
	uid, owner      types.UID
	resourceVersion string
	created         time.Time
	ready           bool
	// failed is set if the pod must be replaced.
	failed bool
	// leaving is set if the pod is being deleted.
	leaving bool
	// claimed is set if this process claimed the pod for a session.
	claimed bool
}

func newWarmSet() *warmSet {
	return &warmSet{pods: map[types.UID]*warmPod{}, pools: map[poolKey]map[types.UID]*warmPod{},
		ready: map[readyKey]map[types.UID]*warmPod{}, claims: map[types.NamespacedName]types.UID{},
		expected: map[poolKey]map[string]time.Time{}, claimed: map[poolKey]time.Time{},
		synced: func() bool { return true }, removed: func(types.UID) {}}
}

func (s *warmSet) follow(ctx context.Context, pods cache.Cache) error {
	informer, err := pods.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.update(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) {
			s.update(o.(*corev1.Pod))
			if updated := s.updated.Load(); updated != nil {
				(*updated)(o.(*corev1.Pod))
			}
		},
		DeleteFunc: func(o any) {
			if tombstone, missed := o.(toolscache.DeletedFinalStateUnknown); missed {
				o = tombstone.Obj
			}
			if pod, isPod := o.(*corev1.Pod); isPod {
				s.remove(pod)
				s.removed(pod.UID)
			}
		},
	})
	if err == nil {
		s.synced = handle.HasSynced
	}
	return err
}

// owningClass returns the reference to the SessionClass that controls a warm pod; nil if a session
// has the pod.
func owningClass(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "SessionClass" || !lifecycle.IsWarm(pod) ||
		!strings.HasPrefix(owner.APIVersion, v1alpha1.SchemeGroupVersion.Group+"/") {
		return nil
	}
	return owner
}

// failedWarm reports whether a warm pod cannot serve a session. The restarts of a pod count against
// its session, so a restarted pod is replaced.
func failedWarm(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded ||
		lifecycle.PodRestarts(pod) > 0 || lifecycle.Exited(pod) != nil
}

func (s *warmSet) update(pod *corev1.Pod) {
	owner := owningClass(pod)
	if owner == nil {
		s.remove(pod)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := readyKey{poolKey{pod.Namespace, pod.Labels[v1alpha1.LabelSessionClass]}, pod.Labels[v1alpha1.LabelWarm]}
	after := &warmPod{readyKey: key, name: pod.Name, uid: pod.UID, owner: owner.UID, failed: failedWarm(pod),
		resourceVersion: pod.ResourceVersion, created: pod.CreationTimestamp.Time, leaving: pod.DeletionTimestamp != nil}
	after.ready = lifecycle.PodReady(pod) && pod.Status.PodIP != "" && !after.failed && !after.leaving
	if before := s.pods[pod.UID]; before != nil { // its labels may have changed
		after.claimed = before.claimed
		s.drop(before)
	}
	delete(s.expected[key.poolKey], pod.Name)
	s.pods[pod.UID] = after
	put(s.pools, key.poolKey, after)
	if after.ready && !after.claimed {
		put(s.ready, key, after)
	}
}

func put[K comparable](sets map[K]map[types.UID]*warmPod, key K, pod *warmPod) {
	if sets[key] == nil {
		sets[key] = map[types.UID]*warmPod{}
	}
	sets[key][pod.uid] = pod
}

func take[K comparable](sets map[K]map[types.UID]*warmPod, key K, uid types.UID) {
	delete(sets[key], uid)
	if len(sets[key]) == 0 {
		delete(sets, key)
	}
}

// drop removes a pod. The caller holds the lock.
func (s *warmSet) drop(pod *warmPod) {
	delete(s.pods, pod.uid)
	take(s.pools, pod.poolKey, pod.uid)
	take(s.ready, pod.readyKey, pod.uid)
	if s.pools[pod.poolKey] == nil {
		delete(s.claimed, pod.poolKey)
	}
}

// remove drops a pod that a session adopted, that lost its labels, or that was deleted.
func (s *warmSet) remove(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.expected[poolKey{pod.Namespace, pod.Labels[v1alpha1.LabelSessionClass]}], pod.Name)
	known := s.pods[pod.UID]
	if known == nil {
		return
	}
	s.drop(known)
	maps.DeleteFunc(s.claims, func(_ types.NamespacedName, uid types.UID) bool { return uid == pod.UID })
}

// claim reserves the oldest ready pod with this template for a session; nil means that there is no
// such pod. A session that claims again gets the same pod.
func (s *warmSet) claim(key readyKey, session types.NamespacedName, now time.Time) *objects.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.pods[s.claims[session]]; own != nil && own.readyKey == key && own.ready {
		return &objects.Claim{Name: own.name, UID: own.uid} // the claim of an earlier try
	}
	s.unclaim(session)
	if len(s.ready[key]) == 0 {
		return nil
	}
	pod := slices.MinFunc(slices.Collect(maps.Values(s.ready[key])), compareAge)
	take(s.ready, key, pod.uid)
	pod.claimed, s.claims[session], s.claimed[key.poolKey] = true, pod.uid, now
	return &objects.Claim{Name: pod.name, UID: pod.uid}
}

// compareAge orders pods from the oldest to the newest. Sessions claim the oldest pods of a pool, and
// surplus pods are the newest. A manager that does not know the claims of another manager therefore
// rarely deletes a claimed pod as surplus.
func compareAge(a, b *warmPod) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name, b.name))
}

// lastClaim returns the time at which this process last claimed a pod of this pool.
func (s *warmSet) lastClaim(key poolKey) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimed[key]
}

// release ends the claim of a session. Another session may then claim the pod, unless the pod
// already has a session.
func (s *warmSet) release(session types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unclaim(session)
}

// forfeit ends the claim of a session to a pod. Unlike release, it does not offer the pod to other
// sessions, because another session has the pod, or the pod is being deleted or no longer exists.
func (s *warmSet) forfeit(session types.NamespacedName, pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claims[session] == pod {
		delete(s.claims, session)
	}
}

// unclaim ends the claim of a session. The caller holds the lock.
func (s *warmSet) unclaim(session types.NamespacedName) {
	uid, claimed := s.claims[session]
	if !claimed {
		return
	}
	delete(s.claims, session)
	if pod := s.pods[uid]; pod != nil {
		if pod.claimed = false; pod.ready {
			put(s.ready, pod.readyKey, pod)
		}
	}
}

func (s *warmSet) has(namespace, class string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pools[poolKey{namespace, class}]) > 0
}

// pool returns copies of the warm pods of a class in a namespace, the ready pods first. Its second
// result is the number of created pods that the cache does not show yet.
func (s *warmSet) pool(key poolKey, now time.Time) (pods []warmPod, expected int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range s.pools[key] {
		pods = append(pods, *pod)
	}
	for name, created := range s.expected[key] {
		if now.Sub(created) > podTimeout { // it was deleted before the cache showed it
			delete(s.expected[key], name)
		}
	}
	slices.SortFunc(pods, func(a, b warmPod) int {
		if a.ready != b.ready {
			if a.ready {
				return -1
			}
			return 1
		}
		return compareAge(&a, &b)
	})
	return pods, len(s.expected[key])
}

// expect adds a pod to the expected pods. The caller then creates the pod.
func (s *warmSet) expect(key poolKey, name string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected[key] == nil {
		s.expected[key] = map[string]time.Time{}
	}
	s.expected[key][name] = now
}

// unexpect forgets a pod that was not created.
func (s *warmSet) unexpect(key poolKey, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.expected[key], name)
}

func (s *warmSet) namespaces(class string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.pools {
		if key.class == class {
			names = append(names, key.namespace)
		}
	}
	return names
}

func (s *warmSet) classes(namespace string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.pools {
		if key.namespace == namespace {
			names = append(names, key.class)
		}
	}
	return names
}

func (s *warmSet) countReady(class string) (n int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, pods := range s.ready {
		if key.class == class {
			n += int32(len(pods))
		}
	}
	return n
}
