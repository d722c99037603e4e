package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

const (
	// bindDelay is the time from a Bind until the session is ready.
	bindDelay = 150 * time.Millisecond
	// Of bindsPerFault Binds, one on average gets no answer, and one more gets an error.
	bindsPerFault = 20
	// maxRestarts limits the restarts of a session's container. The class allows more restarts.
	maxRestarts     = 3
	maxRestartPause = 2 * time.Second
)

// bind identifies the session and the attempt of a Bind that a pod received.
type bind struct {
	uid     string
	attempt int
}

// binds records all Binds that warm pods received.
type binds struct {
	report *report
	random *rand.Rand

	mu       sync.Mutex
	podsOf   map[bind]map[types.UID]bool
	of       map[types.UID]map[bind]bool // keyed by the UID of the pod
	boundAt  map[types.NamespacedName]time.Time
	accepted int
	lost     int
	restarts map[types.UID]int // restarts of containers, keyed by the UID of the Conversation
}

func newBinds(r *report, random *rand.Rand) *binds {
	return &binds{report: r, random: random, podsOf: map[bind]map[types.UID]bool{}, of: map[types.UID]map[bind]bool{},
		boundAt: map[types.NamespacedName]time.Time{}, restarts: map[types.UID]int{}}
}

// answer records a Bind and chooses its answer. A few Binds get no answer or an error.
func (b *binds) answer(pod types.NamespacedName, uid types.UID, sent *session.Bind) fakekubelet.Answer {
	b.record(pod, uid, sent)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.random.IntN(bindsPerFault) {
	case 0:
		b.lost++
		return fakekubelet.Lose
	case 1:
		b.lost++
		return fakekubelet.Fail
	}
	b.accepted++
	b.boundAt[pod] = time.Now()
	return fakekubelet.Accept
}

// record stores that a pod received the secrets of a session.
func (b *binds) record(pod types.NamespacedName, uid types.UID, sent *session.Bind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := bind{sent.UID, sent.Attempt}
	if b.podsOf[key] == nil {
		b.podsOf[key] = map[types.UID]bool{}
	}
	if b.of[uid] == nil {
		b.of[uid] = map[bind]bool{}
	}
	b.podsOf[key][uid], b.of[uid][key] = true, true
	var document session.Document
	if err := json.Unmarshal(sent.Data[session.DocumentFile], &document); err != nil || document.UID != sent.UID {
		b.report.violation(checkBinds, "the Bind of %s to %s has the document of %q", sent.UID, pod, document.UID)
	}
}

// lifetime returns the time from the start of a pod to its end, and its termination message. The
// time is 0 if the pod does not end by itself. The work of a warm pod begins only with its Bind, so
// the time before the Bind is added.
func (b *binds) lifetime(pod *corev1.Pod) (time.Duration, string) {
	const result = `{"reason":"Completed","message":"done"}`
	if pod.Labels[v1alpha1.LabelWarm] == "" {
		if strings.HasPrefix(pod.Name, oneShotPrefix) {
			return workTime, result
		}
		return 0, ""
	}
	b.mu.Lock()
	bound, is := b.boundAt[client.ObjectKeyFromObject(pod)]
	b.mu.Unlock()
	if !is || !strings.HasPrefix(pod.Labels[v1alpha1.LabelConversation], oneShotPrefix) {
		return 0, ""
	}
	return bound.Add(workTime).Sub(pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time), result
}

func (i *installation) createPools(ctx context.Context, size int) error {
	return manifests.Persist(ctx, func(ctx context.Context) error {
		class := &v1alpha1.SessionClass{}
		if err := i.admin.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultSessionClass}, class); err != nil {
			return err
		}
		class.Spec.Warm = &v1alpha1.WarmPods{Size: int32(size), NamespaceSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName,
				Operator: metav1.LabelSelectorOpIn, Values: namespaces}}}}
		return i.admin.Update(ctx, class)
	})
}

// restartContainers restarts the containers of random warm pods that have a session.
func (b *binds) restartContainers(ctx context.Context, i *installation, kubelet *fakekubelet.Kubelet,
	random *rand.Rand) {
	for cluster.Sleep(ctx, time.Duration(random.Int64N(int64(maxRestartPause)))) == nil {
		pods := &corev1.PodList{}
		if i.admin.List(ctx, pods, ofSessions, client.HasLabels{v1alpha1.LabelWarm}) != nil {
			continue
		}
		running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || uidOf(&p) == "" ||
				b.restarted(uidOf(&p)) >= maxRestarts ||
				strings.HasPrefix(p.Labels[v1alpha1.LabelConversation], oneShotPrefix)
		})
		if len(running) == 0 {
			continue
		}
		pod := &running[random.IntN(len(running))]
		b.mu.Lock()
		b.restarts[uidOf(pod)]++
		b.mu.Unlock()
		_ = kubelet.Restart(ctx, client.ObjectKeyFromObject(pod)) // the API server may have been killed
	}
}

func (b *binds) restarted(conversation types.UID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.restarts[conversation]
}

// check reports these violations: Binds of one attempt to several pods, Binds of several attempts
// to one pod, a Bind to a pod that the session never owned, and a pod that several sessions owned.
// It also reports a run without Binds. The map owners contains the Conversations that owned each
// pod.
func (b *binds) check(owners map[types.UID]map[types.UID]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, pods := range b.podsOf {
		if len(pods) > 1 {
			b.report.violation(checkBinds, "attempt %d of %s was bound to %d pods", key.attempt, key.uid, len(pods))
		}
	}
	for pod, sessions := range b.of {
		if len(sessions) > 1 {
			b.report.violation(checkBinds, "pod %s got the Binds %v", pod, sessions)
		}
		for key := range sessions {
			if !owners[pod][types.UID(key.uid)] {
				b.report.violation(checkBinds, "pod %s got the secrets of %s, which never owned it", pod, key.uid)
			}
		}
	}
	for pod, all := range owners {
		if len(all) > 1 {
			b.report.violation(checkBinds, "pod %s had %d sessions", pod, len(all))
		}
	}
	restarts := 0
	for _, times := range b.restarts {
		restarts += times
	}
	b.report.note(checkBinds, "%d Binds accepted, %d answers lost or failed; %d attempts in %d warm pods; %d restarts of "+
		"containers with a session", b.accepted, b.lost, len(b.podsOf), len(b.of), restarts)
	if len(b.podsOf) == 0 {
		b.report.violation(checkBinds, "no session got a warm pod, so this check proves nothing")
	}
}

func (f *found) poolProblems(size int) (all []problem) {
	say := func(format string, args ...any) {
		all = append(all, problem{checkPools, fmt.Sprintf(format, args...)})
	}
	unclaimed := map[string]int{}
	for key, pod := range f.pods {
		if pod.Labels[v1alpha1.LabelWarm] == "" {
			continue
		}
		secret := f.secrets[key]
		if secret == nil || secret.Type != v1alpha1.SecretTypeWarm {
			say("the warm pod %s has no Secret", key)
		}
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "SessionClass" {
			unclaimed[key.Namespace]++
		}
	}
	for _, namespace := range namespaces {
		if unclaimed[namespace] != size {
			say("%s has %d warm pods without a session, want %d", namespace, unclaimed[namespace], size)
		}
	}
	for key, secret := range f.secrets {
		claim := secret.Annotations[v1alpha1.AnnotationPod]
		name, uid, _ := strings.Cut(claim, "/")
		pod := f.pods[types.NamespacedName{Namespace: key.Namespace, Name: name}]
		switch {
		case secret.Type == v1alpha1.SecretTypeWarm && f.pods[key] == nil:
			say("the Secret %s has no warm pod", key)
		case claim != "" && (pod == nil || string(pod.UID) != uid || uidOf(pod) != uidOf(secret)):
			say("the Secret %s claims the pod %s, which its session does not own", key, claim)
		}
	}
	if class := f.class; class == nil || int(ptr.Deref(class.Status.Warm, -1)) != size*len(namespaces) ||
		int(ptr.Deref(class.Status.WantedWarm, -1)) != size*len(namespaces) {
		say("the status of the class is wrong: %+v", class)
	}
	return all
}
