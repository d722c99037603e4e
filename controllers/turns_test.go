package controllers

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/archivetest"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// allExist tells the archive that every Conversation exists.
type allExist struct{}

func (allExist) OwnerOf(context.Context, string) (string, error) { return "ns/ada", nil }

func (allExist) NameOf(context.Context, string) (string, error) { return "", errors.New("not used") }

func (allExist) CheckAttempt(context.Context, string, int) error { return nil }

// turnArchive is an archive to which a test reports outcomes.
type turnArchive struct {
	store archivetest.Store
	url   string
	// away makes the archive unavailable. polls counts all requests to the archive, and uploads
	// counts the requests that upload model settings.
	away           atomic.Bool
	polls, uploads atomic.Int64
}

// newTurnArchive serves an archive that knows the operator's signing key.
func newTurnArchive(t *testing.T) *turnArchive {
	t.Helper()
	a := &turnArchive{store: archivetest.Open(t, archivetest.InDirectory(t))}
	handler := httpapi.NewHandler(a.store.Store, allExist{}, func() ([]ed25519.PublicKey, error) {
		secret := &corev1.Secret{}
		err := env.Client.Get(context.Background(), client.ObjectKey{Namespace: "parley-system",
			Name: session.SigningSecret}, secret)
		if err != nil {
			return nil, err
		}
		return session.ParsePublicKeys(secret.Data[session.SigningPublicKey])
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, session.ArchiveModel) {
			a.uploads.Add(1)
		}
		if a.polls.Add(1); a.away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	a.url = server.URL
	return a
}

func (a *turnArchive) report(t *testing.T, c *v1alpha1.Conversation, turn *v1alpha1.ConversationTurn) {
	t.Helper()
	err := a.store.SetTurn(t.Context(), string(c.UID), c.Namespace+"/"+c.Name, int(lifecycle.Attempt(c.Status)), turn)
	if err != nil {
		t.Fatal(err)
	}
}

func (a *turnArchive) manager(t *testing.T, ns string) (stop func()) {
	t.Helper()
	return startManagerOptions(t, 4, ns, Options{Namespace: "parley-system", RuntimeImage: "example.com/parley:1",
		ArchiveURL: a.url})
}

func runningConversation(t *testing.T, ns, name string) *v1alpha1.Conversation {
	t.Helper()
	create(t, makeConversation(ns, name).Obj())
	kubelet{t, ns, name}.start()
	return awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

func awaitTurn(t *testing.T, ns, name, want string) *v1alpha1.Conversation {
	t.Helper()
	var c *v1alpha1.Conversation
	await(t, func() error {
		c = getConversation(t, ns, name)
		got := ""
		if turn := c.Status.Turn; turn != nil {
			got = fmt.Sprintf("%s %s: %s", turn.State, turn.Reason, turn.Message)
		}
		if got != want {
			return fmt.Errorf("the turn of %s is %q, want %q", name, got, want)
		}
		return nil
	})
	return c
}

var (
	refusedKey = &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonModelRefusedKey,
		Message: "The model's provider refused the API key."}
	awaitsApproval = &v1alpha1.ConversationTurn{State: v1alpha1.TurnNeedsApproval,
		Reason: v1alpha1.ReasonApprovalPending, Message: "An action waits"}
)

func TestTheStatusShowsTheOutcomeOfTheLastTurn(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	create(t, userSettings(ns, "ada"))
	c, other := runningConversation(t, ns, "c"), runningConversation(t, ns, "other")
	archive.report(t, c, refusedKey)
	c = awaitTurn(t, ns, "c", "Failed ModelRefusedKey: The model's provider refused the API key.")
	if c.Status.State != v1alpha1.StateRunning || kstatusOf(t, c) != "Current" {
		t.Errorf("the session is %s, %s", c.Status.State, kstatusOf(t, c))
	}
	archive.report(t, c, awaitsApproval)
	archive.report(t, other, refusedKey)
	awaitTurn(t, ns, "c", "NeedsApproval ApprovalPending: An action waits")
	awaitTurn(t, ns, "other", "Failed ModelRefusedKey: The model's provider refused the API key.")
	archive.report(t, c, nil)
	awaitTurn(t, ns, "c", "")
	await(t, func() error {
		got := turnEvents(t, c)
		for _, want := range []string{"Warning TurnFailed ModelRefusedKey: The model's provider refused the API key.",
			"Normal ApprovalNeeded ApprovalPending: An action waits"} {
			if !strings.Contains(got, want) {
				return fmt.Errorf("the events are\n%s", got)
			}
		}
		return nil
	})
	// The status of a stopped session still shows the outcome of its last turn.
	change(t, getConversation(t, ns, "other"), func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	if s := awaitState(t, ns, "other", v1alpha1.StateStopped, v1alpha1.ReasonSuspended).Status; s.Turn == nil {
		t.Error("a suspended session has no turn")
	}
}

func turnEvents(t *testing.T, c *v1alpha1.Conversation) string {
	t.Helper()
	var list eventsv1.EventList
	if err := env.Client.List(t.Context(), &list, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range list.Items {
		if e.Regarding.UID == c.UID {
			lines = append(lines, fmt.Sprintf("%s %s %s", e.Type, e.Reason, e.Note))
		}
	}
	return strings.Join(lines, "\n")
}

func TestARestartOfTheManagerKeepsTheOutcomes(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	stop := archive.manager(t, ns)
	create(t, userSettings(ns, "ada"))
	failed, asked := runningConversation(t, ns, "failed"), runningConversation(t, ns, "asked")
	runningConversation(t, ns, "fine")
	archive.report(t, failed, refusedKey)
	archive.report(t, asked, awaitsApproval)
	awaitTurn(t, ns, "failed", "Failed ModelRefusedKey: The model's provider refused the API key.")
	awaitTurn(t, ns, "asked", "NeedsApproval ApprovalPending: An action waits")
	stop()
	before := len(testenv.Writes(t, auditDir, managerUser, ns))

	// While the archive is unavailable, the outcomes in the statuses must not change.
	archive.away.Store(true)
	polled := archive.polls.Load()
	stop = archive.manager(t, ns)
	await(t, func() error {
		if archive.polls.Load() < polled+2 {
			return errors.New("the manager has not polled")
		}
		return nil
	})
	archive.away.Store(false)
	// The manager writes only the outcome that this report changes.
	archive.report(t, asked, nil)
	awaitTurn(t, ns, "asked", "")
	stop()
	writes := testenv.Writes(t, auditDir, managerUser, ns)[before:]
	for _, w := range writes {
		if w.Object.Resource != "events" && w.Object.Name != "asked" {
			t.Errorf("the restart writes\n%s", describe(writes))
		}
	}
	if getConversation(t, ns, "failed").Status.Turn == nil {
		t.Error("the outcome is gone")
	}
}

func TestTheStatusReportsAMissingModelBeforeTheSessionStarts(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil) // also the operator's namespace
	startManagerIn(t, ns, ns)
	settings, other := userSettings(ns, "ada"), userSettings(ns, "other")
	other.Spec.Agent = ptr.To("other")
	create(t, settings, other, catalogueWith(ns, map[string]string{
		session.DefaultAgent: "{protocol: acp, command: [agent], needsModel: true}", "other": "{command: [other]}"}))
	const want = "Failed NoModel: " + lifecycle.MessageNoModel
	create(t, withTask(ns, "c").Obj(), makeConversation(ns, "no-message").Obj(),
		withTask(ns, "other").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "other" }).Obj())
	awaitTurn(t, ns, "c", want)
	for _, name := range []string{"c", "no-message", "other"} {
		kubelet{t, ns, name}.start()
		awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	awaitTurn(t, ns, "c", want)
	awaitTurn(t, ns, "no-message", "")
	awaitTurn(t, ns, "other", "")
	// Without an archive, the outcome is cleared when a model is set.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("example/model") })
	awaitTurn(t, ns, "c", "")
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = nil })
	create(t, withTask(ns, "d").Obj())
	awaitTurn(t, ns, "d", want)
	if c := getConversation(t, ns, "c"); c.Status.Turn != nil {
		t.Errorf("a session that started with a model has the turn %+v", c.Status.Turn)
	}
}

// With an archive, the session itself reports that it has no model, and later that it has one.
func TestTheOutcomeNoModelStaysUntilTheSessionReportsAModel(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	requireAgents(t)
	archive.manager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.Agent = ptr.To("needy")
	create(t, settings, withTask(ns, "c").Obj())
	c := awaitTurn(t, ns, "c", "Failed NoModel: "+lifecycle.MessageNoModel)
	kubelet{t, ns, "c"}.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	archive.report(t, c, &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonNoModel,
		Message: "no model"})
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("example/model") })
	awaitTurn(t, ns, "c", "Failed NoModel: no model") // the outcome stays until the next turn
	archive.report(t, c, nil)
	awaitTurn(t, ns, "c", "")
}

// When a session starts again with another agent, its earlier outcome is cleared, even if the
// session reports nothing.
func TestANewStartClearsTheOutcomeOfTheLastTurn(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	requireAgents(t)
	archive.manager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.Agent = ptr.To("needy")
	create(t, settings, withTask(ns, "c").Obj())
	c := awaitTurn(t, ns, "c", "Failed NoModel: "+lifecycle.MessageNoModel)
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	archive.report(t, c, &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonTurnFailed})
	change(t, getConversation(t, ns, "c"), func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	k.release()
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.Agent = ptr.To("frugal") })
	change(t, getConversation(t, ns, "c"), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	awaitTurn(t, ns, "c", "")
	// The second attempt reports its own outcome.
	archive.report(t, getConversation(t, ns, "c"), awaitsApproval)
	awaitTurn(t, ns, "c", fmt.Sprintf("%s %s: %s", awaitsApproval.State, awaitsApproval.Reason, awaitsApproval.Message))
}

func TestAnUnusableArchiveIsNotPolledTooOften(t *testing.T) {
	t.Parallel()
	polls := make(chan time.Time, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		polls <- time.Now()
		w.Header().Set("ETag", `"x"`)
		_, _ = fmt.Fprint(w, `{"turns": [{"uid": "u", "conversation": "a/b", "turn": {"state": "Odd", "reason": "R"}}, {}]}`)
	}))
	t.Cleanup(server.Close)
	p := newTurnPoller(server.URL+"/", nil, func(context.Context) (string, error) { return "token", nil }, nil)
	p.turns = outcomes{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	first := <-polls
	for range 3 {
		<-polls
	}
	if took := time.Since(first); took < 2*minPollInterval {
		t.Errorf("four polls took %s", took)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if turn, known := p.reported(&v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{UID: "u"}}); turn != nil || !known {
		t.Errorf("an invalid outcome is taken: %+v, %v", turn, known)
	}
}

// requireAgents creates the agent catalogue, unless another test has already created it.
func requireAgents(t *testing.T) {
	t.Helper()
	err := env.Client.Create(t.Context(), catalogueWith("parley-system", map[string]string{
		"needy":  "{protocol: acp, command: [agent], needsModel: true}",
		"frugal": "{protocol: acp, command: [agent]}"}))
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
}
