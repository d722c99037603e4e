package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/openid"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const (
	// people is the number of people who sign in for the first time. atOnce limits how many of them
	// sign in at the same time.
	people, atOnce = 200, 16
	// maxActions limits the number of commands that the administrator needs.
	maxActions = 10
	// runningPods is the number of sessions that the namespace allows. More sessions do not fit on
	// the disk of the node.
	runningPods = 3
)

// onboardPeople checks that the administrator needs few commands to let many people sign in. Then
// everybody signs in and creates a conversation.
func onboardPeople(t *t) {
	issuer, caFile := t.issuer()
	t.namespace = "developers"
	admin := &administrator{t: t}
	defer t.disableSignIn()
	_, baseURL := t.scriptedModel()
	admin.makeTeam(baseURL)
	admin.enableSignIn(caFile)
	admin.apply("onboarding", `
apiVersion: v1
kind: ConfigMap
metadata: {name: parley-onboarding, namespace: parley-system}
data:
  onboarding.yaml: |
    groups:
    - {group: "oidc:developers", namespace: developers, sessionClassName: scratch, inheritFrom: team}
    - {group: "oidc:developers", namespace: missing}
`)
	t.Logf("%d actions of the administrator for %d people:\n%s", len(admin.actions), people,
		strings.Join(admin.actions, "\n"))
	if len(admin.actions) > maxActions {
		t.Errorf("the administrator needs %d actions", len(admin.actions))
	}

	began := time.Now()
	retries := t.signInAll(issuer)
	took := time.Since(began)
	t.Logf("%d first sign-ins and creations of a conversation in %.1f s, %d requests were repeated", people,
		took.Seconds(), retries)
	if took > time.Minute {
		t.Errorf("the sign-ins took %s", took)
	}
	t.expectOwners()
	t.retry(func(ctx context.Context) error { return t.expectRunning(ctx, runningPods) })
	err := bearer(issuer.Token("eve@example.com", "visitors")).send(t.ctx, http.MethodPost,
		t.facadeURL()+"/api/conversations", rest.ConversationRequest{}, &rest.ConversationResponse{})
	if refusal, is := errors.AsType[*parley.Refusal](err); !is || refusal.Code != http.StatusForbidden {
		t.Errorf("a person of another group gets %v", err)
	}
}

func (a *administrator) makeTeam(baseURL string) {
	a.apply("namespace", `
apiVersion: v1
kind: Namespace
metadata: {name: developers, labels: {pod-security.kubernetes.io/enforce: restricted}}
`)
	a.do("create", "quota", "sessions", "--namespace=developers", fmt.Sprintf("--hard=pods=%d", runningPods))
	a.do("create", "secret", "generic", "model", "--namespace=developers", "--from-literal=key="+secretValue())
	a.apply("team", fmt.Sprintf(`
apiVersion: parley.dev/v1alpha1
kind: UserSettings
metadata: {name: team, namespace: developers}
spec: {llmModel: scripted/model, llmBaseURL: %q, llmAPIKeyRef: {name: model, key: key}}
`, baseURL))
}

func (t *t) signInAll(issuer *openid.Issuer) (retries int64) {
	var all sync.WaitGroup
	var repeated atomic.Int64
	url, slots := t.facadeURL(), make(chan struct{}, atOnce)
	for i := range people {
		token := bearer(issuer.Token(email(i), "developers"))
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := t.firstSignIn(token, url, fmt.Sprintf("of-%d", i), &repeated); err != nil {
				t.Errorf("person %d: %v", i, err)
			}
		})
	}
	all.Wait()
	return repeated.Load()
}

// firstSignIn creates a conversation and reads the person's settings. It repeats a request that the
// facade answers with status 503.
func (t *t) firstSignIn(token bearer, url, id string, repeated *atomic.Int64) error {
	ctx, cancel := context.WithTimeout(t.ctx, time.Minute)
	defer cancel()
	send := func(method, path string, body, into any) (err error) {
		_ = retry(ctx, func(ctx context.Context) error {
			err = token.send(ctx, method, url+path, body, into)
			if refusal, is := errors.AsType[*parley.Refusal](err); is && refusal.Code == http.StatusServiceUnavailable {
				repeated.Add(1)
				time.Sleep(time.Second) // the facade asks for a pause
				return err
			}
			return nil
		})
		return err
	}
	if err := send(http.MethodPost, "/api/conversations", rest.ConversationRequest{ConversationID: &id},
		&rest.ConversationResponse{}); err != nil {
		return err
	}
	var session rest.Session
	if err := send(http.MethodGet, "/api/session", nil, &session); err != nil {
		return err
	}
	if len(session.Settings) != 1 || session.Settings[0].Namespace != "developers" {
		return fmt.Errorf("the settings are %+v", session.Settings)
	}
	return nil
}

func email(i int) string { return fmt.Sprintf("person-%d@example.com", i) }

// expectOwners checks that each person has their own settings and conversation, and nothing else.
func (t *t) expectOwners() {
	var settings v1alpha1.UserSettingsList
	t.must(t.client.List(t.ctx, &settings, client.InNamespace("developers")))
	owners := map[string]string{} // keyed by the name of the settings
	for _, s := range settings.Items {
		if s.Spec.Owner != nil && s.Spec.Owner.Group != nil && *s.Spec.Owner.Group == "oidc:developers" {
			owners[s.Name] = s.Spec.Owner.Username
		}
	}
	var conversations v1alpha1.ConversationList
	t.must(t.client.List(t.ctx, &conversations, client.InNamespace("developers")))
	if len(settings.Items) != people+1 || len(owners) != people || len(conversations.Items) != people {
		t.Fatalf("there are %d UserSettings, %d with an owner, and %d conversations", len(settings.Items), len(owners),
			len(conversations.Items))
	}
	for _, c := range conversations.Items {
		want := "oidc:person-" + strings.TrimPrefix(c.Name, "of-") + "@example.com"
		if owners[c.Spec.UserSettingsName] != want || c.Annotations[v1alpha1.AnnotationRequestedBy] != want {
			t.Errorf("%s belongs to %s and was requested by %s", c.Name, owners[c.Spec.UserSettingsName],
				c.Annotations[v1alpha1.AnnotationRequestedBy])
		}
	}
}

func (t *t) expectRunning(ctx context.Context, count int) error {
	var conversations v1alpha1.ConversationList
	if err := t.client.List(ctx, &conversations, client.InNamespace("developers")); err != nil {
		return err
	}
	others := map[string]int{}
	for _, c := range conversations.Items {
		others[string(c.Status.State)+" "+c.Status.Reason]++
	}
	if got := others["RUNNING "+v1alpha1.ReasonRunning]; got < count {
		return fmt.Errorf("%d sessions are running: %v", got, others)
	}
	return nil
}

// pipeline runs a one-shot conversation with the token of a ServiceAccount, and reads its result.
func pipeline(t *t) {
	namespace := t.newNamespace()
	_, baseURL := t.scriptedModel(scriptedmodel.Step{Text: "The tests pass."})
	admin := &administrator{t: t}
	admin.do("create", "serviceaccount", "ci", "--namespace="+namespace)
	admin.do("create", "secret", "generic", "model", "--namespace="+namespace, "--from-literal=key="+secretValue())
	admin.apply("pipeline", fmt.Sprintf(`
apiVersion: parley.dev/v1alpha1
kind: UserSettings
metadata: {name: ci, namespace: %[1]s}
spec:
  owner: {username: "system:serviceaccount:%[1]s:ci"}
  sessionClassName: scratch
  llmModel: scripted/model
  llmBaseURL: %[2]q
  llmAPIKeyRef: {name: model, key: key}
`, namespace, baseURL))
	token, err := t.kubectl(t.ctx, "create", "token", "ci", "--audience=parley", "--namespace="+namespace)
	t.must(err)
	ci, url := bearer(strings.TrimSpace(token)), t.facadeURL()+"/api/conversations"
	message, once, id := "Run the tests.", true, "build"
	t.retry(func(ctx context.Context) error { // the facade may not know the settings yet
		return ci.send(ctx, http.MethodPost, url, rest.ConversationRequest{InitialUserMsg: &message, OneShot: &once,
			ConversationID: &id}, &rest.ConversationResponse{})
	})
	t.retry(func(ctx context.Context) error {
		var c rest.Conversation
		if err := ci.send(ctx, http.MethodGet, url+"/build", nil, &c); err != nil {
			return err
		}
		if c.Status != string(v1alpha1.StateStopped) || c.Reason == nil || *c.Reason != v1alpha1.ReasonCompleted {
			return fmt.Errorf("the conversation is %+v", c)
		}
		return nil
	})
	t.retry(func(ctx context.Context) error {
		var events struct{ Trajectory []any }
		if err := ci.send(ctx, http.MethodGet, url+"/build/trajectory", nil, &events); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Trajectory, func(e any) bool {
			return strings.Contains(fmt.Sprint(e), "The tests pass.")
		}) {
			return fmt.Errorf("none of %d events is the answer", len(events.Trajectory))
		}
		return nil
	})
	other, err := t.kubectl(t.ctx, "create", "token", "ci", "--namespace="+namespace)
	t.must(err)
	err = bearer(strings.TrimSpace(other)).send(t.ctx, http.MethodGet, url+"/build", nil, &rest.Conversation{})
	if refusal, is := errors.AsType[*parley.Refusal](err); !is || refusal.Code != http.StatusUnauthorized {
		t.Errorf("a token for another audience gets %v", err)
	}
	t.expectRequestedBy(namespace, id, "system:serviceaccount:"+namespace+":ci")
}

func (t *t) expectRequestedBy(namespace, name, want string) {
	c := &v1alpha1.Conversation{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: namespace, Name: name}, c))
	if got := c.Annotations[v1alpha1.AnnotationRequestedBy]; got != want {
		t.Errorf("%s was requested by %q, want %q", name, got, want)
	}
}
