package controllers

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/objects"
)

func freePod(namespace, class, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"),
			Labels: map[string]string{v1alpha1.LabelWarm: "hash", v1alpha1.LabelSessionClass: class},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(),
				Kind: "SessionClass", Name: class, UID: "class-uid", Controller: ptr.To(true)}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func TestARelabelledWarmPodIsTrackedOnce(t *testing.T) {
	set, pod := newWarmSet(), freePod("ns", "class", "warm-1")
	for i := range 100 {
		pod = pod.DeepCopy()
		pod.Labels[v1alpha1.LabelSessionClass], pod.Labels[v1alpha1.LabelWarm] = fmt.Sprint("class-", i), fmt.Sprint(i)
		set.update(pod)
	}
	if len(set.pools) != 1 || len(set.ready) != 1 || !set.has("ns", "class-99") {
		t.Errorf("one pod is in %d pools, and ready in %d", len(set.pools), len(set.ready))
	}
	for name, change := range map[string]func(*corev1.Pod){
		"lost its label": func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelWarm) },
		"lost its class": func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelSessionClass); p.OwnerReferences = nil },
	} {
		set.update(pod)
		changed := pod.DeepCopy()
		change(changed)
		set.update(changed)
		if len(set.pods)+len(set.pools)+len(set.ready) != 0 {
			t.Errorf("a pod that %s is in %d pools", name, len(set.pools))
		}
	}
}

func TestASessionForfeitsOnlyTheClaimOfTheDiscardedPod(t *testing.T) {
	pool, session := poolKey{"ns", "class"}, types.NamespacedName{Namespace: "ns", Name: "c"}
	for discarded, free := range map[types.UID]int{"earlier-uid": 1, "warm-1-uid": 0} {
		set := newWarmSet()
		set.update(freePod("ns", "class", "warm-1"))
		if claim := set.claim(readyKey{pool, "hash"}, session, at(0)); claim == nil || claim.UID != "warm-1-uid" {
			t.Fatalf("the session claimed %v", claim)
		}
		set.forfeit(session, discarded)
		set.release(session)
		if len(set.ready) != free {
			t.Errorf("after %s was discarded, %d pods can be claimed, want %d", discarded, len(set.ready), free)
		}
	}
}

// A pool keeps its first pods and deletes surplus pods, which are the last ones.
func TestSessionsClaimThePodsThatThePoolKeeps(t *testing.T) {
	set, key := newWarmSet(), poolKey{"ns", "class"}
	for i := range 9 {
		pod := freePod("ns", "class", fmt.Sprint("warm-", i))
		pod.CreationTimestamp = metav1.NewTime(at(i * 7 % 5))
		set.update(pod)
	}
	pods, _ := set.pool(key, at(0))
	for i, pod := range pods {
		session := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}
		if claim := set.claim(readyKey{key, "hash"}, session, at(0)); claim == nil || claim.Name != pod.name {
			t.Errorf("claim %d is %v, want %s", i, claim, pod.name)
		}
	}
}

func TestAPodOwnedByASessionClassOfAnotherAPIGroupIsNotWarm(t *testing.T) {
	set, pod := newWarmSet(), freePod("ns", "class", "warm-1")
	pod.OwnerReferences[0].APIVersion = "example.com/v1"
	if set.update(pod); set.has("ns", "class") {
		t.Error("a pod of another API's SessionClass is in the pool")
	}
}

func TestAPoolIsNotRefilledDuringStarts(t *testing.T) {
	now, set, key := testingclock.NewFakePassiveClock(time.Now()), newWarmSet(), poolKey{"ns", "class"}
	starting := false
	r := &warmPoolReconciler{gatherer: &gatherer{options: Options{Clock: now}}, set: set,
		starting: func(string) bool { return starting }}
	pods := &objects.WarmPods{Owner: &v1alpha1.SessionClass{Spec: v1alpha1.SessionClassSpec{
		Warm: &v1alpha1.WarmPods{Size: 3}}}}
	for _, pod := range []*corev1.Pod{freePod("ns", "class", "warm-1"), freePod("other", "class", "warm-2")} {
		set.update(pod)
	}
	claim := func(namespace, hash string) *objects.Claim {
		return set.claim(readyKey{poolKey{namespace, "class"}, hash}, types.NamespacedName{Namespace: namespace, Name: "c"},
			now.Now())
	}
	if claim("other", "hash") == nil || claim("ns", "no such template") != nil {
		t.Fatal("claimed the wrong pod")
	}
	if r.busy(key, pods, 2) {
		t.Error("a start without a pod of this pool delays its refill")
	}
	if claim("ns", "hash"); !r.busy(key, pods, 2) {
		t.Error("a pool is refilled during a series of starts")
	}
	now.SetTime(now.Now().Add(warmQuiet))
	if r.busy(key, pods, 2) {
		t.Error("a pool is not refilled after a series of starts")
	}
	if starting = true; !r.busy(key, pods, 3) {
		t.Error("a pool is refilled while a session is starting")
	}
}

func TestARefillIsDelayedByOtherStartsForALimitedTime(t *testing.T) {
	r, key, now := &warmPoolReconciler{waiting: map[poolKey]time.Time{}}, poolKey{"ns", "class"}, time.Now()
	for after, want := range []bool{false, false, true} {
		if got := r.overdue(key, now.Add(time.Duration(after)*warmPatience/2)); got != want {
			t.Errorf("overdue at step %d: %t", after, got)
		}
	}
	r.stopWaiting(key)
	if r.overdue(key, now.Add(warmPatience)) {
		t.Error("overdue again at once")
	}
}
