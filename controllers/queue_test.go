package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func runningPods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := env.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !lifecycle.HoldsSlot(&p) })
}

func TestAClassLimitsTheRunningSessionsOfAUser(t *testing.T) {
	t.Parallel()
	const all, limit, workers = 100, 10, 32
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](limit)})
	stop := startManagerWith(t, workers, "parley-system", ns)
	create(t, userSettings(ns, "ada"))
	var users sync.WaitGroup
	for i := range all {
		users.Go(func() {
			if err := env.Client.Create(t.Context(), makeConversation(ns, fmt.Sprintf("c-%03d", i)).With(
				ofClass(name)).Obj()); err != nil {
				t.Error(err)
			}
		})
	}
	users.Wait()
	pods := func() []corev1.Pod {
		t.Helper()
		running := runningPods(t, ns)
		if len(running) > limit {
			t.Fatalf("%d pods run at once", len(running))
		}
		return running
	}
	ended := map[string]bool{}
	for len(ended) < all {
		await(t, func() error {
			if got := len(pods()); got < min(limit, all-len(ended)) {
				return fmt.Errorf("%d pods run while %d sessions remain", got, all-len(ended))
			}
			return nil
		})
		// Halfway, another manager takes over.
		if len(ended) == all/2 && stop != nil {
			stop()
			startManagerWith(t, workers, "parley-system", ns)
			stop = nil
		}
		for _, pod := range pods() {
			conversation := pod.Labels[v1alpha1.LabelConversation]
			k := kubelet{t, ns, conversation}
			k.set(func(p aPod) { p.Ended(0, `{"reason":"Completed"}`, 0) })
			ended[conversation] = true
		}
	}
}

func TestOtherSessionsStartIfAQueuedSessionCannotStart(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	replay := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "replay"},
		Data: map[string]string{"x": "[]"}}
	create(t, userSettings(ns, "ada"), replay, makeConversation(ns, "a").With(ofClass(name)).Obj())
	k := kubelet{t, ns, "a"}
	k.start()
	create(t, makeConversation(ns, "b").With(ofClass(name)).With(func(s *v1alpha1.ConversationSpec) {
		s.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: "replay", Key: "x"}
	}).Obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	create(t, makeConversation(ns, "c").With(ofClass(name)).Obj())
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := env.Client.Delete(t.Context(), replay); err != nil {
		t.Fatal(err)
	}
	k.end(`{"reason":"Completed"}`)
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	kubelet{t, ns, "c"}.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	// When nothing is missing any more, the session waits for a slot.
	replay.ResourceVersion = ""
	create(t, replay)
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}

func TestTheManagerDoesNotReadTheSettingsOfEachQueuedSession(t *testing.T) {
	t.Parallel()
	const waiting, secrets = 20, 5
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	settings := userSettings(ns, "ada")
	settings.Spec.LLMAPIKeyRef = ref("key-0")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{}
	for i := range secrets {
		create(t, secretWith(ns, fmt.Sprintf("key-%d", i), "k"))
		settings.Spec.SecretsStore.CustomSecrets = append(settings.Spec.SecretsStore.CustomSecrets,
			v1alpha1.CustomSecret{Name: fmt.Sprintf("KEY_%d", i), SecretRef: *ref(fmt.Sprintf("key-%d", i))})
	}
	startManager(t, ns)
	create(t, settings, makeConversation(ns, "runs").With(ofClass(class)).Obj())
	kubelet{t, ns, "runs"}.start()
	awaitState(t, ns, "runs", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	for i := range waiting {
		create(t, makeConversation(ns, fmt.Sprintf("c-%d", i)).With(ofClass(class)).Obj())
	}
	for i := range waiting {
		awaitState(t, ns, fmt.Sprintf("c-%d", i), v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	}
	change(t, secretWith(ns, "key-0", ""), func(s *corev1.Secret) { s.Data = map[string][]byte{"key": []byte("changed")} })
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("another") })
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(settings), settings); err != nil ||
			settings.Status.ObservedGeneration != settings.Generation {
			return errors.Join(err, errors.New("the change of the settings was not reconciled"))
		}
		return nil
	})
	kubelet{t, ns, "runs"}.end(`{"reason":"Completed"}`)
	await(t, func() error {
		if len(runningPods(t, ns)) == 0 {
			return errors.New("no queued session started")
		}
		return nil
	})
	// Only the conversation controller reads UserSettings from the API server, one time for each
	// start.
	reads := 0
	for _, r := range testenv.Requests(t, auditDir, managerUser) {
		if r.Object.Namespace == ns && r.Object.Resource == "usersettings" && r.Verb == "get" {
			reads++
		}
	}
	if reads > waiting/2 {
		t.Errorf("2 starts and %d queued sessions read the settings %d times", waiting-1, reads)
	}
}

// The sessions enter the queue in an order that is neither the order of their names nor the order
// in which they were created.
func TestANewManagerKeepsTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	stop := startManager(t, ns)
	later := makeConversation(ns, "b").With(ofClass(class)).With(func(s *v1alpha1.ConversationSpec) {
		s.Suspend = true
	}).Obj()
	create(t, userSettings(ns, "ada"), later, makeConversation(ns, "runs").With(ofClass(class)).Obj())
	kubelet{t, ns, "runs"}.start()
	awaitState(t, ns, "runs", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	awaitState(t, ns, "b", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	for _, name := range []string{"z", "m", "y"} {
		create(t, makeConversation(ns, name).With(ofClass(class)).Obj())
		awaitState(t, ns, name, v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	}
	change(t, later, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	create(t, makeConversation(ns, "a").With(ofClass(class)).Obj())
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	stop()
	kubelet{t, ns, "runs"}.end(`{"reason":"Completed"}`) // a slot is free before a manager leads again
	startManager(t, ns)
	var order []string
	for range 5 {
		var running []corev1.Pod
		await(t, func() error {
			if running = runningPods(t, ns); len(running) != 1 {
				return fmt.Errorf("%d pods run", len(running))
			}
			return nil
		})
		name := running[0].Labels[v1alpha1.LabelConversation]
		order = append(order, name)
		kubelet{t, ns, name}.end(`{"reason":"Completed"}`)
	}
	if !slices.Equal(order, []string{"z", "m", "y", "b", "a"}) {
		t.Errorf("the sessions started in the order %v", order)
	}
}

// Parley 0.1.0 recorded no queue numbers. Its queued sessions are therefore ordered by their start
// times.
func TestAnUpgradeKeepsTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	create(t, userSettings(ns, "ada"))
	names := []string{"z", "m", "y", "b", "a", "x", "c"}
	for i, name := range names {
		c := makeConversation(ns, name).With(ofClass(class)).Obj()
		create(t, c)
		began := metav1.NewTime(c.CreationTimestamp.Add(time.Duration(i) * time.Minute))
		c.Status = v1alpha1.ConversationStatus{ObservedGeneration: c.Generation, State: v1alpha1.StateStarting,
			Reason: v1alpha1.ReasonQueued, StartTime: &began}
		if err := managerClient(t).Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	p := newTimedProcess(t, ns, managerClient(t))
	for number, name := range names[1:] {
		if s := p.expect(name, v1alpha1.StateStarting, v1alpha1.ReasonQueued); s.QueueNumber != int64(number+2) {
			t.Errorf("session %s has the number %d in the queue", name, s.QueueNumber)
		}
	}
}

func TestADeletedSessionKeepsItsSlotUntilItsPodIsGone(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	first := makeConversation(ns, "a").With(ofClass(name)).Obj()
	create(t, userSettings(ns, "ada"), userSettings(ns, "grace"), first)
	k := kubelet{t, ns, "a"}
	k.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	create(t, makeConversation(ns, "b").With(ofClass(name)).Obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := env.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	// The start of another user's session proves that the manager has reconciled the deletion. No
	// garbage collector runs here, so the pod stays.
	create(t, makeConversation(ns, "other").With(func(s *v1alpha1.ConversationSpec) {
		s.UserSettingsName =
			"grace"
	}).Obj())
	kubelet{t, ns, "other"}.start()
	awaitState(t, ns, "other", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if err := gone(t, kubelet{t, ns, "b"}.object()); err != nil {
		t.Error(errors.Join(err, errors.New("the first pod still runs")))
	}
	if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	kubelet{t, ns, "b"}.start()
	awaitState(t, ns, "b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// refusedClass creates a class with a session limit and a missing RuntimeClass, so that the API
// server refuses its pods.
func refusedClass(t *testing.T, namespace string, limit int32) *v1alpha1.SessionClass {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "refusing-" + namespace},
		Spec: v1alpha1.SessionClassSpec{
			MaxSessionsPerUser: ptr.To(limit), Placement: &v1alpha1.SessionPlacement{RuntimeClassName: ptr.To("none-" +
				namespace)},
		}}
	create(t, class)
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), class) })
	return class
}

func TestARefusedSessionGivesItsSlotToTheNextSession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	refused := refusedClass(t, ns, 1)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refused.Name)).Obj())
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	create(t, makeConversation(ns, "b").With(ofClass(name)).Obj())
	b := kubelet{t, ns, "b"}
	b.start()
	awaitState(t, ns, "b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	queued := awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if !strings.Contains(queued.Status.Message, "none-"+ns) {
		t.Errorf("the message lacks the reason of the refusal: %s", queued.Status.Message)
	}
	// After the cause of the refusal is removed, the session "a" still waits until a slot is free.
	change(t, refused, func(c *v1alpha1.SessionClass) { c.Spec.Placement.RuntimeClassName = nil })
	create(t, makeConversation(ns, "c").With(ofClass(name)).Obj())
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := gone(t, kubelet{t, ns, "a"}.object()); err != nil {
		t.Error(err)
	}
	b.end(`{"reason":"Completed"}`)
	kubelet{t, ns, "a"}.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// A session whose pod is refused keeps its slot for some time. Otherwise the next session would get
// the slot, create its Secret and volume, and be refused too, and so on for all waiting sessions.
func TestOtherSessionsStayQueuedWhileAQuotaRefusesASession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	quota := denyPods(t, ns)
	create(t, userSettings(ns, "ada"))
	for _, c := range []string{"a", "b", "c"} {
		create(t, makeConversation(ns, c).With(ofClass(name)).Obj())
	}
	p := newTimedProcess(t, ns, managerClient(t))
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	for range 3 {
		p.reconcile("a")
		p.expect("b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
		p.advance(time.Second)
		p.expect("c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	}
	if p.hasSecret("b") || p.hasSecret("c") {
		t.Error("waiting sessions create objects")
	}
	// Session a keeps its slot after the first refusal. The second refusal frees the slot for session
	// b.
	p.advance(minRetryDelay)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.expect("b", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.expect("c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	p.advance(minRetryDelay)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if p.hasSecret("c") {
		t.Error("the whole queue creates objects")
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		p.advance(minRetryDelay)
		for _, name := range []string{"a", "b", "c"} {
			p.reconcile(name)
		}
		if pods := len(runningPods(t, ns)); pods != 1 {
			return fmt.Errorf("%d pods run", pods)
		}
		return nil
	})
}

// The refused session may request more storage than the other sessions. The others may still fit the
// quota, so they must get the slot.
func TestASessionRefusedByAQuotaFreesItsSlotSoon(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	denyResource(t, ns, corev1.ResourceRequestsStorage)
	large := func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} }
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(name)).With(large).Obj(),
		makeConversation(ns, "b").With(ofClass(name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.expect("b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	// The backoff of the refused session does not delay the waiting session.
	p.advance(time.Minute)
	p.reconcile("a")
	p.reconcile("b")
	b := kubelet{t, ns, "b"}
	b.start()
	p.expect("b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	p.advance(minRetryDelay)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	b.end(`{"reason":"Completed"}`)
	p.expect("b", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.reconcile("b")
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
}

func TestARefusedSessionRetriesSoonWhileItHasASlot(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refusedClass(t, ns, 1).Name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("a")
	p.advance(4 * time.Minute)
	if again := p.reconcile("a").RequeueAfter; again < time.Minute { // the second refusal freed the session's slot
		t.Errorf("it retries in %s", again)
	}
	p.advance(4 * time.Minute)
	if again := p.reconcile("a").RequeueAfter; again > 2*minRetryDelay {
		t.Errorf("a session with a slot retries in %s", again)
	}
}

func TestRefusedSessionsOfAUserRetryOneAfterAnother(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](3)})
	quota := denyPods(t, ns)
	create(t, userSettings(ns, "ada"))
	sessions := []string{"a", "b", "c"}
	p := newTimedProcess(t, ns, managerClient(t))
	for _, c := range sessions {
		create(t, makeConversation(ns, c).With(ofClass(name)).Obj())
		p.expect(c, v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	}
	retry := func() {
		p.advance(minRetryDelay)
		for range 2 {
			for _, c := range sessions {
				p.reconcile(c)
			}
		}
	}
	for range 4 {
		before := podRequests(t, ns)
		retry()
		if tries := podRequests(t, ns) - before; tries != 1 {
			t.Errorf("%d sessions try again", tries)
		}
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	// While pods are refused, only one session retries at a time. This ends as soon as a session gets
	// its pod.
	await(t, func() error {
		retry()
		if pods := len(runningPods(t, ns)); pods != len(sessions) {
			return fmt.Errorf("%d pods run", pods)
		}
		return nil
	})
}

func TestARefusedSessionThatLacksAnInputKeepsItsStatus(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	denyPods(t, ns)
	settings, key := userSettings(ns, "ada"), secretWith(ns, "key", "k")
	settings.Spec.LLMAPIKeyRef = ref("key")
	create(t, key, settings, makeConversation(ns, "a").With(ofClass(name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	if err := env.Client.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.advance(minRetryDelay)
		for range 3 {
			p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
		}
	}
}

func TestARefusedSessionOfAClassWithoutALimitDoesNotCountAsRunning(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	limited := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	denyResource(t, ns, corev1.ResourceRequestsStorage)
	large := func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} }
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(large).Obj(),
		makeConversation(ns, "b").With(large).Obj(), makeConversation(ns, "c").With(ofClass(limited)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	for range 2 {
		for _, name := range []string{"a", "b"} {
			p.expect(name, v1alpha1.StateStarting, v1alpha1.ReasonRejected)
		}
		p.advance(minRetryDelay)
	}
	p.reconcile("c")
	kubelet{t, ns, "c"}.start()
	p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// podRequests returns how many times the manager tried to create a pod.
func podRequests(t *testing.T, namespace string) (count int) {
	t.Helper()
	for _, r := range testenv.Writes(t, auditDir, managerUser, namespace) {
		if r.Verb == "create" && r.Object.Resource == "pods" {
			count++
		}
	}
	return count
}

func TestNoDeadlineAppliesWhileARefusedSessionIsQueued(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refusedClass(t, ns, 1).Name)).Obj(),
		makeConversation(ns, "b").With(ofClass(name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("a")
	p.advance(minRetryDelay)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.reconcile("b")
	b := kubelet{t, ns, "b"}
	b.start()
	p.expect("b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	p.advance(minRetryDelay)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	p.advance(time.Hour)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	b.end(`{"reason":"Completed"}`)
	p.expect("b", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.reconcile("b")
	// The manager restarts, and the session "a" gets the slot again. Its start deadline begins only
	// now.
	p = timedProcess{newProcess(managerClient(t), managerClient(t)), t, ns, p.now}
	p.clock = p.now
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.advance(9 * time.Minute)
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.advance(time.Minute)
	if s := p.expect("a", v1alpha1.StateStopped, v1alpha1.ReasonStartDeadlineExceeded); !strings.Contains(s.Message,
		"at step Rejected: create Pod: ") {
		t.Errorf("message %q", s.Message)
	}
}

func TestTheStartDeadlineDoesNotStopAQueuedSession(t *testing.T) {
	t.Parallel()
	for reason, wait := range map[string]func(p timedProcess){
		v1alpha1.ReasonQueued: func(p timedProcess) {
			p.reconcile("b")
			kubelet{p.t, p.namespace, "b"}.start()
			p.expect("b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		},
		v1alpha1.ReasonSettingsNotReady: func(p timedProcess) {
			if err := env.Client.Delete(p.t.Context(), userSettings(p.namespace, "ada")); err != nil {
				p.t.Fatal(err)
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
			create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refusedClass(t, ns, 1).Name)).Obj(),
				makeConversation(ns, "b").With(ofClass(name)).Obj())
			p := newTimedProcess(t, ns, managerClient(t))
			p.reconcile("a")
			p.advance(minRetryDelay)
			p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected) // the second refusal freed its slot
			wait(p)
			p.advance(time.Hour)
			p.expect("a", v1alpha1.StateStarting, reason)
		})
	}
}

// A refusal is written to the status, and each status write requeues the session. Without a pause,
// a refused session would immediately retry, take the free slot, be refused again, and free the
// slot for the next refused session. This would never end.
func TestRefusedSessionsDoNotCauseEndlessStatusWrites(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := refusedClass(t, ns, 1).Name
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(class)).Obj(), makeConversation(ns,
		"b").With(ofClass(class)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	for range 4 { // until each was refused twice
		p.reconcile("a")
		p.reconcile("b")
		p.advance(minRetryDelay)
	}
	p.reconcile("a")
	p.reconcile("b")
	before := len(testenv.Writes(t, auditDir, managerUser, ns))
	for range 3 {
		for _, name := range []string{"a", "b"} {
			if again := p.reconcile(name).RequeueAfter; again != 0 && again < minRetryDelay {
				t.Errorf("%s is requeued in %s", name, again)
			}
		}
	}
	if writes := testenv.Writes(t, auditDir, managerUser, ns)[before:]; len(writes) > 0 {
		t.Errorf("refused sessions still write:\n%s", describe(writes))
	}
	// A changed Conversation may succeed now, so it enters the queue again.
	change(t, getConversation(t, ns, "a"), func(c *v1alpha1.Conversation) { c.Spec.IdleTimeout.Duration += time.Minute })
	p.expect("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}

// The cache lacks the pod, so the manager tries to create the pod again. The API server checks the
// quota before it checks whether the pod exists. The refusal because of the full quota therefore
// does not prove that the session has no pod.
func TestASessionKeepsItsSlotEvenIfTheCacheLacksItsPod(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	longDeadline := func(s *v1alpha1.ConversationSpec) { s.StartDeadline = &metav1.Duration{Duration: 24 * time.Hour} }
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(name)).With(longDeadline).Obj(),
		makeConversation(ns, "b").With(ofClass(name)).Obj())
	manager := managerClient(t)
	newTimedProcess(t, ns, manager).reconcile("a")
	kubelet{t, ns, "a"}.pod()
	denyPods(t, ns)
	late := newTimedProcess(t, ns, staleCache{Client: manager, stalePods: true})
	await(t, func() error {
		late.advance(podTimeout)
		late.reconcile("a")
		if s := getConversation(t, ns, "a").Status; s.Reason != v1alpha1.ReasonRejected {
			return fmt.Errorf("the reason is %s", s.Reason)
		}
		return nil
	})
	late.advance(podTimeout)
	late.reconcile("a") // if the session had no pod, this second refusal would free its slot
	late.expect("b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}
