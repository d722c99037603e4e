package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

func TestASessionWaitsForTheConfigMapsOfItsImages(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Images = []v1alpha1.ConversationImage{imageIn("one", "image"), imageAt("https://example.com/" + strings.Repeat("x",
			2000)), imageIn("two", "b.png")}
	}).Obj())
	says := func(message string) {
		t.Helper()
		await(t, func() error {
			if c := getConversation(t, ns, "c"); c.Status.State != v1alpha1.StateStarting || !strings.Contains(c.Status.Message,
				message) {
				return fmt.Errorf("the state is %s with message %q, want %q", c.Status.State, c.Status.Message, message)
			}
			return nil
		})
	}
	says("spec.images[0].configMapKeyRef: ConfigMap one with key image does not exist")
	create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"},
		BinaryData: map[string][]byte{"image": {0xff}}})
	says("spec.images[2].configMapKeyRef: ConfigMap two with key b.png does not exist")
	two := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "two"},
		BinaryData: map[string][]byte{"a.png": {0xff}}}
	create(t, two)
	change(t, two, func(m *corev1.ConfigMap) { m.BinaryData["b.png"] = []byte{0xfe} })

	pod := kubelet{t, ns, "c"}.pod()
	at := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Projected != nil })
	if at < 0 || len(pod.Spec.Volumes[at].Projected.Sources) != 2 ||
		pod.Spec.Volumes[at].Projected.Sources[1].ConfigMap.Items[0].Path != "2.png" {
		t.Errorf("the volumes are %+v", pod.Spec.Volumes)
	}
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), sessionObject(getConversation(t, ns, "c")), secret); err != nil {
		t.Fatal(err)
	}
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil || len(doc.Images) != 3 ||
		len(doc.Images[1].URL) < 2000 || doc.Images[2].Name != "2.png" {
		t.Errorf("the document has the images %+v, %v", doc.Images, err)
	}
}

// partlyStored returns a Conversation with inputs that the facade has not stored yet.
func partlyStored(ns, name string) aConversation {
	c := makeConversation(ns, name).With(func(s *v1alpha1.ConversationSpec) {
		s.Images = []v1alpha1.ConversationImage{
			imageIn("one", "image")}
	})
	c.Annotations = map[string]string{v1alpha1.AnnotationIncomplete: "true"}
	return c
}

const oneIsMissing = "spec.images[0].configMapKeyRef: ConfigMap one with key image does not exist"

func TestInputsThatTheFacadeHasNotStoredYetCauseNoWarning(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	c, lost := partlyStored(ns, "c").Obj(), partlyStored(ns, "lost").Obj()
	create(t, userSettings(ns, "ada"), c, lost)
	p := newTimedProcess(t, ns, managerClient(t))
	p.now.SetTime(c.CreationTimestamp.Time)
	warned := events.NewFakeRecorder(10)
	p.recorder = warned
	for _, name := range []string{"c", "lost"} {
		s := p.expect(name, v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
		if s.Message != lifecycle.MessageStoring {
			t.Errorf("%s says %s", name, s.Message)
		}
	}
	// The facade removes AnnotationIncomplete when it has stored all inputs. If an input is missing
	// afterwards, the manager emits a warning.
	change(t, lost, func(c *v1alpha1.Conversation) { delete(c.Annotations, v1alpha1.AnnotationIncomplete) })
	p.reconcile("lost")
	if len(warned.Events) != 1 || !strings.Contains(<-warned.Events, oneIsMissing) {
		t.Error("there is no warning of the missing ConfigMap")
	}
	create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"},
		BinaryData: map[string][]byte{"image": {0xff}}})
	change(t, c, func(c *v1alpha1.Conversation) { delete(c.Annotations, v1alpha1.AnnotationIncomplete) })
	p.reconcile("c")
	kubelet{t, ns, "c"}.start()
	p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if started := <-warned.Events; !strings.Contains(started, "Started") || len(warned.Events) > 0 {
		t.Errorf("event %q, and %d more", started, len(warned.Events))
	}
}

// A facade that crashes while it stores inputs never removes AnnotationIncomplete.
func TestInputsThatAreNotStoredInTimeAreReportedAsMissing(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	c := partlyStored(ns, "c").Obj()
	create(t, userSettings(ns, "ada"), c)
	p := newTimedProcess(t, ns, managerClient(t))
	p.now.SetTime(c.CreationTimestamp.Time)
	warned := events.NewFakeRecorder(10)
	p.recorder = warned
	p.reconcile("c")
	again := p.reconcile("c").RequeueAfter
	if again == 0 || again > time.Minute || len(warned.Events) > 0 {
		t.Fatalf("requeued in %s, after %d warnings", again, len(warned.Events))
	}
	p.advance(again)
	if s := p.expect("c", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady); s.Message != oneIsMissing {
		t.Errorf("message %q", s.Message)
	}
	if len(warned.Events) != 1 || !strings.Contains(<-warned.Events, oneIsMissing) {
		t.Error("there is no warning")
	}
}

func TestTheMissingInputIsNamedIfTheStartDeadlineIsExceeded(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	c := partlyStored(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.StartDeadline = &metav1.Duration{
			Duration: 10 * time.Second}
	}).Obj()
	create(t, userSettings(ns, "ada"), c)
	p := newTimedProcess(t, ns, managerClient(t))
	p.now.SetTime(c.CreationTimestamp.Time)
	p.reconcile("c")
	p.advance(10 * time.Second)
	if s := p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing); s.Message != oneIsMissing {
		t.Errorf("message %q", s.Message)
	}
}

type configMapReads struct {
	client.Reader
	reads map[string]int
}

func (r configMapReads) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	r.reads[key.Name]++
	o.SetName(key.Name)
	o.(*corev1.ConfigMap).Data = map[string]string{"x": "1", "y": "2"}
	return nil
}

func TestEachConfigMapIsReadOnce(t *testing.T) {
	conversation := makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Images = []v1alpha1.ConversationImage{imageIn("a", "x"), imageIn("b", "x"), imageIn("a", "y")}
	}).Obj()
	live := configMapReads{reads: map[string]int{}}
	_, missing, err := newInputReader(live, "ns").firstMissing(t.Context(), nil, conversation.ConfigMapReferences(), "")
	if missing != nil || err != nil {
		t.Fatal(missing, err)
	}
	if want := map[string]int{"a": 1, "b": 1}; !maps.Equal(live.reads, want) {
		t.Errorf("reads are %v, want %v", live.reads, want)
	}
}
