package controllers

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAnEndedPodIsDeletedAfterItsTTL(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{
		EndedPodTTL: &metav1.Duration{Duration: time.Hour}}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(ofClass(class)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("c")
	k := kubelet{t, ns, "c"}
	k.set(func(pod aPod) { pod.Ready() })
	p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(`{"reason":"Failed","message":"no such branch"}`)
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if again := p.reconcile("c").RequeueAfter; again <= time.Hour-time.Minute || again > time.Hour {
		t.Errorf("requeued in %s", again)
	}
	if err := gone(t, k.object()); err == nil {
		t.Error("the pod was deleted before its TTL")
	}
	p.advance(time.Hour)
	p.reconcile("c")
	if err := gone(t, k.object()); err != nil {
		t.Errorf("after the TTL: %v", err)
	}
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if again := p.reconcile("c").RequeueAfter; again != 0 {
		t.Errorf("requeued in %s although nothing is left to do", again)
	}
}

func TestThePodOfACompletedSessionIsNotDeletedWhileThePodPhaseIsRunning(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.set(func(p aPod) { p.Ended(0, `{"reason":"Completed"}`, 0).Phase(corev1.PodRunning) })
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	await(t, func() error { return gone(t, secretWith(ns, v1alpha1.SessionName("c"), "")) }) // the end is handled
	if pod := k.pod(); pod.DeletionTimestamp != nil {
		t.Error("the pod was deleted with its logs")
	}
}

func workspaceTTL(ttl time.Duration) v1alpha1.SessionClassSpec {
	return v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: ttl},
	}}
}

// shortDefaultTTL is a cache that shows a SessionClass "default" with short TTLs. If the class
// really existed, it would affect other tests.
type shortDefaultTTL struct{ client.Client }

func (c shortDefaultTTL) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	if class, ok := object.(*v1alpha1.SessionClass); ok && key.Name == v1alpha1.DefaultSessionClass {
		class.Name, class.Spec = key.Name, workspaceTTL(time.Minute)
		class.Spec.Lifetimes = &v1alpha1.SessionLifetimes{
			TTLAfterStopped: &v1alpha1.Lifetime{Default: &metav1.Duration{Duration: time.Minute}}}
		return nil
	}
	return c.Client.Get(ctx, key, object, options...)
}

func TestTheVolumeTTLOfASuspendedSessionDoesNotChange(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*testing.T, *v1alpha1.UserSettings, *v1alpha1.SessionClass){
		"after its settings change class": func(t *testing.T, settings *v1alpha1.UserSettings, _ *v1alpha1.SessionClass) {
			change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.SessionClassName = nil })
		},
		"after its settings are deleted": func(t *testing.T, settings *v1alpha1.UserSettings, _ *v1alpha1.SessionClass) {
			if err := env.Client.Delete(t.Context(), settings); err != nil {
				t.Fatal(err)
			}
		},
		"after its class changes": func(t *testing.T, _ *v1alpha1.UserSettings, class *v1alpha1.SessionClass) {
			change(t, class, func(c *v1alpha1.SessionClass) { c.Spec = workspaceTTL(time.Minute) })
		},
		"after its class is deleted": func(t *testing.T, _ *v1alpha1.UserSettings, class *v1alpha1.SessionClass) {
			if err := env.Client.Delete(t.Context(), class); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{
				Name: createClass(t, ns, workspaceTTL(24*time.Hour))}}
			settings, conversation := userSettings(ns, "ada"), makeConversation(ns, "c").Obj()
			settings.Spec.SessionClassName = &class.Name
			create(t, settings, conversation)
			p := newTimedProcess(t, ns, shortDefaultTTL{managerClient(t)})
			p.reconcile("c")
			kubelet{t, ns, "c"}.set(func(pod aPod) { pod.Ready() })
			p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
			change(t, conversation, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
			p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
			meanwhile(t, settings, class)

			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
			kept := func() bool {
				t.Helper()
				for range 4 { // delete the pod, record that it is gone, expire
					p.reconcile("c")
				}
				return gone(t, claim) != nil && claim.DeletionTimestamp == nil
			}
			p.advance(23 * time.Hour)
			if !kept() {
				t.Error("the volume was deleted before its TTL")
			}
			p.advance(time.Hour)
			if kept() {
				t.Error("the volume was not deleted after its TTL")
			}
		})
	}
}

func TestAConversationThatWaitsForItsSettingsIsNotDeletedAfterItsTTL(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	conversation := makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.TTLAfterStopped = &metav1.Duration{Duration: time.Minute}
	}).Obj()
	create(t, conversation)
	p := newTimedProcess(t, ns, shortDefaultTTL{managerClient(t)})
	p.expect("c", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	p.advance(10 * time.Minute)
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing)
	p.advance(time.Hour)
	for range 3 { // enough reconciles to record that no pod exists, and to delete the Conversation
		p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing)
	}
	create(t, userSettings(ns, "ada"))
	p.reconcile("c")
	kubelet{t, ns, "c"}.pod()
}

func TestAConversationIsDeletedAfterItsTTLEvenIfItsVolumeMustAlsoBeDeleted(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Hour},
	}})
	conversation := makeConversation(ns, "c").With(ofClass(class)).With(func(s *v1alpha1.ConversationSpec) {
		s.TTLAfterStopped = &metav1.Duration{Duration: time.Hour}
	}).Obj()
	create(t, userSettings(ns, "ada"), conversation)
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("c")
	k := kubelet{t, ns, "c"}
	k.set(func(pod aPod) { pod.Ready() })
	p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(`{"reason":"Completed"}`)
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.advance(2 * time.Hour)
	p.reconcile("c")
	if left := gone(t, conversation); left != nil {
		t.Error(left)
	}
}
