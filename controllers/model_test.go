package controllers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func modelUser(t *testing.T, ns string) *v1alpha1.UserSettings {
	t.Helper()
	requireAgents(t)
	settings := userSettings(ns, "ada")
	settings.Spec.Agent, settings.Spec.LLMModel, settings.Spec.LLMAPIKeyRef = ptr.To("frugal"), ptr.To("a/one"), ref("llm")
	create(t, secretWith(ns, "llm", "sk-first"), settings)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	return settings
}

// sentModel returns the archived model that the running session can read, or an empty model.
func (a *turnArchive) sentModel(t *testing.T, c *v1alpha1.Conversation) session.ModelSettings {
	t.Helper()
	sealed, _, err := a.store.Model(t.Context(), string(c.UID))
	if err != nil {
		return session.ModelSettings{}
	}
	defer sealed.Close()
	text, err := io.ReadAll(sealed)
	if err != nil {
		t.Fatal(err)
	}
	model, err := session.OpenModel(string(sessionSecret(t, c).Data[session.KeyFile]), string(c.UID), text)
	if err != nil || bytes.Contains(text, []byte(model.Key)) {
		t.Fatalf("the archived model is %q, %v", text, err)
	}
	return model
}

func sessionSecret(t *testing.T, c *v1alpha1.Conversation) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), sessionObject(c), secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// awaitModel waits until the manager sent a model and a key to a session, and recorded the revision
// of the model.
func (a *turnArchive) awaitModel(t *testing.T, c *v1alpha1.Conversation, model, key string) {
	t.Helper()
	await(t, func() error {
		got := a.sentModel(t, c)
		if got.Model != model || got.Key != key {
			return fmt.Errorf("%s was sent the model %s", c.Name, got.Model)
		}
		if recorded := sessionSecret(t, c).Annotations[v1alpha1.AnnotationModel]; recorded != got.Revision {
			return fmt.Errorf("the recorded revision is %q, want %q", recorded, got.Revision)
		}
		return nil
	})
}

// sends returns the numbers of model uploads and of patches of session Secrets so far.
func (a *turnArchive) sends(t *testing.T, ns string) string {
	t.Helper()
	patches := 0
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
		if w.Object.Resource == "secrets" && w.Verb == "patch" && strings.HasSuffix(w.Object.Name, "-session") {
			patches++
		}
	}
	return fmt.Sprintf("%d uploads, %d patches", a.uploads.Load(), patches)
}

func TestAChangedModelIsSentToRunningSessions(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	stop := archive.manager(t, ns)
	settings := modelUser(t, ns)
	c := runningConversation(t, ns, "c")
	if label := (kubelet{t, ns, "c"}).pod().Labels[v1alpha1.LabelModel]; label == "" {
		t.Fatal("the pod has no revision of its model")
	}
	if got := archive.sends(t, ns); got != "0 uploads, 0 patches" {
		t.Errorf("a start causes %s", got)
	}
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("b/two") })
	archive.awaitModel(t, c, "b/two", "sk-first")
	if got := archive.sends(t, ns); got != "1 uploads, 1 patches" {
		t.Errorf("a changed model causes %s", got)
	}
	llm := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "llm"}, llm); err != nil {
		t.Fatal(err)
	}
	change(t, llm, func(s *corev1.Secret) { s.Data["key"] = []byte("sk-second") })
	archive.awaitModel(t, c, "b/two", "sk-second")
	if got := archive.sends(t, ns); got != "2 uploads, 2 patches" {
		t.Errorf("a changed key causes %s", got)
	}
	// A change of another setting is not sent to the sessions.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.Language = ptr.To("de") })
	// A session that starts now has the current model, so the manager sends it no model.
	d := runningConversation(t, ns, "d")
	if got := archive.sentModel(t, d); got.Model != "" {
		t.Errorf("a new session was sent %s", got.Model)
	}
	stop()
	before := len(testenv.Writes(t, auditDir, managerUser, ns))
	stop = archive.manager(t, ns)
	// The restarted manager compares the models of all sessions. It sends the following change once
	// to each session, and nothing else.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMBaseURL = ptr.To("https://llm.example.com") })
	await(t, func() error { // two more: one for each session
		if got := archive.sends(t, ns); got != "4 uploads, 4 patches" {
			return errors.New("there were " + got)
		}
		return nil
	})
	archive.awaitModel(t, d, "b/two", "sk-second")
	stop()
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns)[before:] {
		if w.Object.Resource != "secrets" && w.Object.Resource != "usersettings" {
			t.Errorf("a change of the model writes %s", describe([]testenv.Request{w}))
		}
	}
	if got := archive.sends(t, ns); got != "4 uploads, 4 patches" {
		t.Errorf("after the restart there were %s", got)
	}
	if strings.Contains(logs.String(), "sk-second") {
		t.Error("a key is logged")
	}
}

func TestARestartedManagerSendsAModelThatChangedWhileItWasDown(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	stop := archive.manager(t, ns)
	settings := modelUser(t, ns)
	c := runningConversation(t, ns, "c")
	stop()
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("b/two") })
	archive.away.Store(true)
	tried := archive.uploads.Load()
	archive.manager(t, ns)
	await(t, func() error { // the manager retries if the archive does not answer
		if archive.uploads.Load() < tried+2 {
			return errors.New("the manager has not tried twice")
		}
		return nil
	})
	archive.away.Store(false)
	archive.awaitModel(t, c, "b/two", "sk-first")
	// The replacement of a lost pod uses the Secret of the lost pod, and reads the model that was
	// already sent. The manager sends nothing to the replacement until the model changes again.
	lost, sent := (kubelet{t, ns, "c"}).pod(), archive.uploads.Load()
	if err := env.Client.Delete(t.Context(), lost, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	kubelet{t, ns, "c"}.awaitReplacement(lost)
	kubelet{t, ns, "c"}.start()
	await(t, func() error {
		if c = getConversation(t, ns, "c"); c.Status.State != v1alpha1.StateRunning || c.Status.RanAttempt != 2 {
			return fmt.Errorf("the session is %s in attempt %d", c.Status.State, c.Status.Attempt)
		}
		return nil
	})
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("c/three") })
	archive.awaitModel(t, c, "c/three", "sk-first")
	if got := archive.uploads.Load() - sent; got != 1 {
		t.Errorf("after a replacement there were %d uploads", got)
	}
}

func TestAModelThatCannotBeUsedIsNotSentToSessions(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	settings := modelUser(t, ns)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxIterations: ptr.To[int32](5)})
	create(t, makeConversation(ns, "c").With(ofClass(class)).Obj())
	kubelet{t, ns, "c"}.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	free := runningConversation(t, ns, "free")
	// The class of the session "c" does not allow 6 iterations, so the manager sends this change
	// only to the session "free".
	change(t, settings, func(s *v1alpha1.UserSettings) {
		s.Spec.LLMModel, s.Spec.MaxIterations = ptr.To("b/two"), ptr.To[int32](6)
	})
	archive.awaitModel(t, free, "b/two", "sk-first")
	// The Secret with the model's API key does not exist, so the manager sends this change to no
	// session.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.MaxIterations, s.Spec.LLMAPIKeyRef = nil, ref("missing") })
	awaitSettings(t, settings, v1alpha1.ReasonSecretNotFound)
	if got := archive.sends(t, ns); got != "1 uploads, 1 patches" {
		t.Errorf("there were %s", got)
	}
	create(t, secretWith(ns, "missing", "sk-third"))
	archive.awaitModel(t, c, "b/two", "sk-third")
	archive.awaitModel(t, free, "b/two", "sk-third")
	if got := archive.sends(t, ns); got != "3 uploads, 3 patches" {
		t.Errorf("there were %s", got)
	}
	// A session that is resumed gets the current model, and cannot read a model that was sent
	// before it was suspended.
	change(t, c, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	kubelet{t, ns, "c"}.releaseAttempt("1")
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, getConversation(t, ns, "c"), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	kubelet{t, ns, "c"}.start()
	c = awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	secret := sessionSecret(t, c)
	sealed, _, err := archive.store.Model(t.Context(), string(c.UID))
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()
	text, err := io.ReadAll(sealed)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := session.OpenModel(string(secret.Data[session.KeyFile]), string(c.UID), text); err == nil {
		t.Errorf("the next start reads %s", got.Model)
	}
	if secret.Labels[v1alpha1.LabelModel] == "" || secret.Annotations[v1alpha1.AnnotationModel] != "" {
		t.Errorf("the next start has the labels %v and the annotations %v", secret.Labels, secret.Annotations)
	}
}

// annotateKey returns a function that annotates the Secret of the settings' key, and waits until the
// manager has handled the change. The key itself does not change. To wait, the function changes the
// key of another user, whose running session gets the new key after the manager has handled both
// changes.
func annotateKey(t *testing.T, ns string, archive *turnArchive, settings *v1alpha1.UserSettings) func(value string) {
	t.Helper()
	other := userSettings(ns, "bob")
	other.Spec = *settings.Spec.DeepCopy()
	other.Spec.LLMAPIKeyRef = ref("marker")
	marker := secretWith(ns, "marker", "sk-marker")
	create(t, marker, other)
	b := makeConversation(ns, "b").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "bob" }).Obj()
	create(t, b)
	kubelet{t, ns, "b"}.start()
	b = awaitState(t, ns, "b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	return func(value string) {
		t.Helper()
		change(t, secretWith(ns, "llm", ""), func(s *corev1.Secret) {
			s.Annotations = map[string]string{"example.com/n": value}
		})
		change(t, marker, func(s *corev1.Secret) { s.Data["key"] = []byte("sk-marker-" + value) })
		archive.awaitModel(t, b, "a/one", "sk-marker-"+value)
	}
}

func TestAChangedSecretIsReadOnceForAllSessionsOfAUser(t *testing.T) {
	t.Parallel()
	const sessions = 8
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	settings := modelUser(t, ns)
	annotate := annotateKey(t, ns, archive, settings)
	for n := range sessions {
		runningConversation(t, ns, fmt.Sprint("c-", n))
	}
	reads := func() (n int) {
		for _, r := range testenv.Requests(t, auditDir, managerUser) {
			if r.Object.Namespace == ns && r.Object.Name == "llm" && r.Verb == "get" {
				n++
			}
		}
		return n
	}
	annotate("1") // the manager learns the model of each session
	before := reads()
	annotate("2")
	// More than one read is allowed, because several workers of the manager may read the key at the
	// same time.
	if n := reads() - before; n > sessions/2 {
		t.Errorf("%d sessions read the key %d times", sessions, n)
	}
}

// Each change of the key's Secret gives the model a new revision, even if the key stays the same. The
// manager must not write the session's Secret then: a write of a large Secret costs the API server
// much CPU time, and a user could change the Secret of the key again and again.
func TestAModelWithAnUnchangedKeyIsNotSentAgain(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	settings := modelUser(t, ns)
	c := runningConversation(t, ns, "c")
	annotate := annotateKey(t, ns, archive, settings)
	annotate("1")
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("b/two") })
	archive.awaitModel(t, c, "b/two", "sk-first")
	annotate("2")
	change(t, secretWith(ns, "llm", ""), func(s *corev1.Secret) { s.Data["key"] = []byte("sk-second") })
	archive.awaitModel(t, c, "b/two", "sk-second")
	if got := archive.sends(t, ns); got != "4 uploads, 4 patches" { // two of each are for bob's session
		t.Errorf("two changes of the model in each of two sessions cause %s", got)
	}
	// The manager sends a/one to the session. Then a user starts the session again with b/two. If
	// the model changes back to a/one, the manager must send a/one again.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("a/one") })
	archive.awaitModel(t, c, "a/one", "sk-second")
	change(t, c, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	kubelet{t, ns, "c"}.releaseAttempt("1")
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("b/two") })
	change(t, getConversation(t, ns, "c"), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	kubelet{t, ns, "c"}.start()
	c = awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("a/one") })
	await(t, func() error {
		if sessionSecret(t, c).Annotations[v1alpha1.AnnotationModel] == "" {
			return errors.New("the second model was not sent again")
		}
		return nil
	})
	archive.awaitModel(t, c, "a/one", "sk-second")
}

func TestTheRateOfModelChangesThatReachASessionIsLimited(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	r := newModelReconciler(&gatherer{options: Options{Clock: clock}}, nil)
	allowed := func(uid types.UID) (n int) {
		for range 100 {
			if r.sendsTo(uid).limiter.AllowN(clock.Now(), 1) {
				n++
			}
		}
		return n
	}
	if got := allowed("ada"); got != modelBurst {
		t.Errorf("%d changes reached a session at once, want %d", got, modelBurst)
	}
	if got := allowed("bob"); got != modelBurst {
		t.Errorf("%d changes reached another session at once, want %d", got, modelBurst)
	}
	clock.SetTime(clock.Now().Add(modelInterval))
	if got := allowed("ada"); got != 1 {
		t.Errorf("%d changes reached a session %s later, want 1", got, modelInterval)
	}
}
