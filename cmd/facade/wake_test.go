package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/server"
)

const aMessage = `{"message": "go on"}`

// waitingAt starts a facade with this WakeTimeout, the longest time for which a message waits until
// its session runs. It returns the person as a client of this facade.
func (p *person) waitingAt(t *testing.T, timeout time.Duration) *person {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	objects, err := cluster.New(ctx, suite.AsFacade, "parley-system",
		cluster.Options{Agents: v1alpha1.AgentCatalogueName, Models: v1alpha1.ModelsName})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = objects.Start(ctx) }()
	if err := objects.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	options := server.DefaultOptions()
	options.WakeTimeout, options.Limits.Rate = timeout, 0
	served := httptest.NewServer(server.New(objects, options, prometheus.NewRegistry()))
	t.Cleanup(func() {
		served.Close()
		cancel()
	})
	return p.atFacade(t, served.URL)
}

func (p *person) awaitReason(t *testing.T, id, reason string) {
	t.Helper()
	await(t, func() error {
		if c := p.conversation(t, id); c.Status.Reason != reason {
			return fmt.Errorf("it is %s %s: %s", c.Status.State, c.Status.Reason, c.Status.Message)
		}
		return nil
	})
}

// No kubelet runs here, so a session never runs.
func TestAMessageIsNotAcceptedIfTheSessionDoesNotStart(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"},
		Spec: v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)}}
	create(t, class)
	ada := newcomer(t).waitingAt(t, time.Second)
	conversation := func(name string) *v1alpha1.Conversation {
		return &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: name},
			Spec: v1alpha1.ConversationSpec{UserSettingsName: ada.name, SessionClassName: &class.Name}}
	}
	refused := func(id string, code int, text string) {
		t.Helper()
		r := ada.post(t, "/api/conversations/"+id+"/message", aMessage).wants(t, code)
		if !strings.Contains(r.body, text) || (r.header.Get("Retry-After") != "") != (code == 503) {
			t.Errorf("answered %s, %v", r.body, r.header)
		}
	}
	create(t, conversation("first"))
	await(t, func() error { return codeOf(ada.get(t, "/api/conversations/first"), 200) })
	refused("first", 503, "The message was not accepted, retry later: the session is starting")
	create(t, conversation("second"))
	ada.awaitReason(t, "second", v1alpha1.ReasonQueued)
	refused("second", 503, "The message was not accepted, retry later: the session is queued. This class allows 1 ")
	ada.post(t, "/api/conversations/second/stop", "").wants(t, 200)
	ada.awaitReason(t, "second", v1alpha1.ReasonSuspended)
	refused("second", 503, "the session is queued") // the refused message has resumed the session
	ada.awaitReason(t, "second", v1alpha1.ReasonQueued)

	lacking := conversation("lacking")
	lacking.Spec.SessionClassName, lacking.Spec.ReplayJSONRef = nil, &v1alpha1.ConfigMapKeyRef{Name: "absent", Key: "x"}
	create(t, lacking)
	ada.awaitReason(t, "lacking", v1alpha1.ReasonSettingsNotReady)
	refused("lacking", 409, "The session cannot start. SettingsNotReady: ")

	once := conversation("once")
	once.Spec.OneShot, once.Spec.InitialUserMsg, once.Spec.Suspend = true, ptr.To("work"), true
	create(t, once)
	ada.awaitReason(t, "once", v1alpha1.ReasonSuspended)
	refused("once", 409, "one-shot")
	if !ada.conversation(t, "once").Spec.Suspend {
		t.Error("the one-shot session was started")
	}
}

func TestNoCallChangesLifecycleFieldsManagedByAGitOpsTool(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	applied := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": ada.namespace, "name": "talk"},
		"spec":     map[string]any{"userSettingsName": ada.name, "suspend": true},
	}}
	applied.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Conversation"))
	if err := suite.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner("kustomize-controller")); err != nil {
		t.Fatal(err)
	}
	ada.awaitReason(t, "talk", v1alpha1.ReasonSuspended)
	await(t, func() error {
		return codeOf(ada.post(t, "/api/conversations/talk/message", aMessage), 409)
	})
	ada.post(t, "/api/conversations/talk/message", aMessage).wants(t, 409).says(t, `{"detail": "kustomize-controller `+
		`manages the field spec.suspend of this conversation: change the field at its source"}`)
	ada.post(t, "/api/conversations/talk/start", "{}").wants(t, 409).says(t, `{"detail": "kustomize-controller `+
		`manages the field spec.suspend of this conversation: change the field at its source"}`)
	if !ada.conversation(t, "talk").Spec.Suspend {
		t.Error("the conversation was started")
	}
	ada.post(t, "/api/conversations/talk/stop", "{}").wants(t, 200) // the conversation is stopped already
	if err := unstructured.SetNestedField(applied.Object, false, "spec", "suspend"); err != nil {
		t.Fatal(err)
	}
	applied.SetManagedFields(nil)
	applied.SetResourceVersion("")
	if err := suite.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner("kustomize-controller")); err != nil {
		t.Fatal(err)
	}
	ada.post(t, "/api/conversations/talk/stop", "{}").wants(t, 409)
	if ada.conversation(t, "talk").Spec.Suspend {
		t.Error("the conversation was stopped")
	}
}

func TestWaitingMessagesOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	const messages, limit = 200, 64
	ada := newcomer(t).waitingAt(t, time.Minute)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	ctx, leave := context.WithCancel(t.Context())
	codes := make(chan int, messages)
	var clients sync.WaitGroup
	for range messages {
		clients.Go(func() {
			request, err := http.NewRequestWithContext(ctx, "POST", ada.url+"/api/conversations/talk/message",
				strings.NewReader(aMessage))
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set(rest.KeyHeader, ada.key)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return // the client has disconnected
			}
			_ = response.Body.Close()
			codes <- response.StatusCode
		})
	}
	for range messages - limit {
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Fatalf("answered %d", code)
		}
	}
	ada.get(t, "/api/conversations/talk").wants(t, 200)
	ada.post(t, "/api/conversations/talk/message", aMessage).wants(t, 429)
	leave() // the clients disconnect, so the messages no longer wait
	clients.Wait()
	await(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, "POST", ada.url+"/api/conversations/talk/message",
			strings.NewReader(aMessage))
		if err != nil {
			return err
		}
		request.Header.Set(rest.KeyHeader, ada.key)
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
			return fmt.Errorf("answered %d", response.StatusCode)
		}
		return nil
	})
}
