package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/server"
)

// faulty is a cluster whose requests fail. The API server may nevertheless have executed a failed
// request.
type faulty struct {
	*cluster.Cluster
	// If secrets is true, writes of Secrets fail. If settings is true, changes of settings fail.
	secrets, settings bool
	// configMapsLeft is the number of ConfigMaps that can be written before writes fail; nil means
	// no limit.
	configMapsLeft *int
	// If creation is true, CreateConversation returns an error. The API server still creates the
	// conversation, but only after creationDelay.
	creation      bool
	creationDelay time.Duration
}

func (f *faulty) WriteSecret(ctx context.Context, secret *corev1.Secret) error {
	if f.secrets {
		return errors.New("cut off")
	}
	return f.Cluster.WriteSecret(ctx, secret)
}

func (f *faulty) ApplySettings(ctx context.Context, live *v1alpha1.UserSettings, spec map[string]any,
	options cluster.ApplyOptions) (map[string]any, error) {
	if f.settings && !options.DryRun {
		return nil, errors.New("cut off")
	}
	return f.Cluster.ApplySettings(ctx, live, spec, options)
}

func (f *faulty) CreateConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error {
	if f.configMapsLeft != nil {
		if *f.configMapsLeft == 0 {
			return errors.New("cut off")
		}
		*f.configMapsLeft--
	}
	return f.Cluster.CreateConfigMap(ctx, configMap)
}

func (f *faulty) CreateConversation(ctx context.Context, c *v1alpha1.Conversation) error {
	if !f.creation {
		return f.Cluster.CreateConversation(ctx, c)
	}
	create := func() { _ = f.Cluster.CreateConversation(context.WithoutCancel(ctx), c.DeepCopy()) }
	if f.creationDelay > 0 {
		time.AfterFunc(f.creationDelay, create)
	} else {
		create()
	}
	return context.DeadlineExceeded
}

// served starts, in this process, a facade that uses the faulty cluster f. It returns the person as
// a client of that facade.
func (p *person) served(t *testing.T, f *faulty) *person {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	if f.Cluster, err = cluster.New(ctx, suite.AsFacade, "parley-system",
		cluster.Options{Agents: v1alpha1.AgentCatalogueName, Models: v1alpha1.ModelsName}); err != nil {
		t.Fatal(err)
	}
	go func() { _ = f.Start(ctx) }()
	// The tests expect the status 503 because of failed requests. A facade that is not ready
	// responds with 503 too, so wait until it is ready.
	if err := f.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(server.New(f, server.DefaultOptions(), prometheus.NewRegistry()))
	t.Cleanup(func() {
		served.Close()
		cancel()
	})
	return p.atFacade(t, served.URL)
}

// The facade stores a new key in two writes: first the Secret, then the settings with the endpoint.
// If the facade is killed between the two writes, the old endpoint must still get the old key.
func TestANewKeyNeverReachesTheOldEndpoint(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	killed := ada.served(t, &faulty{settings: true})
	stored := func() string {
		spec := ada.settings(t).Spec
		if spec.LLMAPIKeyRef == nil {
			return ""
		}
		return spec.ModelEndpoint() + " gets " + ada.secret(t, spec.LLMAPIKeyRef.Name)
	}
	for _, step := range []struct{ body, want string }{
		{`{"llm_model": "openai/gpt-5", "llm_api_key": "k1"}`, "openai gets k1"},
		{`{"llm_model": "anthropic/claude-opus-4-5", "llm_api_key": "k2"}`, "anthropic gets k2"},
		{`{"llm_base_url": "https://a.example.com", "llm_api_key": "k3"}`, "https://a.example.com gets k3"},
		{`{"llm_base_url": "https://b.example.com"}`, "https://b.example.com gets k3"}, // the user keeps the key
		{`{"llm_base_url": "https://a.example.com", "llm_api_key": "k4"}`, "https://a.example.com gets k4"},
		{`{"llm_base_url": "https://b.example.com"}`, "https://b.example.com gets k4"},
		{`{"llm_base_url": "https://a.example.com", "llm_api_key": "k5"}`, "https://a.example.com gets k5"},
		{`{"llm_base_url": null, "llm_model": null, "llm_api_key": "k6"}`, " gets k6"},
		{`{"llm_model": "openai/gpt-5", "llm_api_key": "k7"}`, "openai gets k7"},
	} {
		before := stored()
		killed.post(t, "/api/settings", step.body).wants(t, 503)
		if got := stored(); got != before {
			t.Errorf("before the settings are stored: %s, want %s", got, before)
		}
		ada.post(t, "/api/settings", step.body).wants(t, 200)
		if got := stored(); got != step.want {
			t.Errorf("%s, want %s", got, step.want)
		}
	}
}

// The facade creates the Conversation first, and then the Secrets with its keys. If it cannot write
// the Secrets, the Conversation stays incomplete until the client retries.
func TestARetryCompletesAPartialConversation(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.served(t, &faulty{secrets: true}).post(t, "/api/conversations", everyConversationField).wants(t, 503)
	half := ada.conversation(t, "every-field")
	if half.Annotations[v1alpha1.AnnotationIncomplete] == "" || half.Spec.TTLAfterStopped == nil {
		t.Fatal("the partial conversation has no TTL")
	}
	ada.post(t, "/api/conversations", everyConversationField).wants(t, 200)
	c := ada.conversation(t, "every-field")
	if c.UID != half.UID || c.Annotations[v1alpha1.AnnotationIncomplete] != "" || c.Spec.TTLAfterStopped != nil {
		t.Errorf("the conversation is still incomplete: %v", c.ObjectMeta)
	}
	if got := ada.secret(t, c.Spec.MCPConfig.SSEServers[0].APIKeyRef.Name); got != "conv-key-1" {
		t.Errorf("its key is %q", got)
	}
}

// If the client chose no ID, its retry creates a second conversation. The facade must delete the
// first conversation.
func TestACreationWithoutAResponseLeavesNoConversation(t *testing.T) {
	for name, late := range map[string]time.Duration{"executed": 0, "executed late": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ada := newcomer(t)
			cut := ada.served(t, &faulty{creation: true, creationDelay: late})
			events, err := suite.Client.Watch(t.Context(), &v1alpha1.ConversationList{}, client.InNamespace(ada.namespace))
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			cut.post(t, "/api/conversations", `{"initial_user_msg": "hello"}`).wants(t, 503)
			if event := <-events.ResultChan(); event.Type != watch.Added {
				t.Fatalf("the first event is %s", event.Type)
			}
			await(t, func() error {
				var list v1alpha1.ConversationList
				if err := suite.Client.List(t.Context(), &list, client.InNamespace(ada.namespace)); err != nil ||
					len(list.Items) > 0 {
					return errors.Join(err, fmt.Errorf("%d conversations are left", len(list.Items)))
				}
				return nil
			})
		})
	}
	t.Run("a conversation with an ID stays for a retry", func(t *testing.T) {
		t.Parallel()
		ada := newcomer(t)
		const body = `{"conversation_id": "talk", "initial_user_msg": "hello"}`
		ada.served(t, &faulty{creation: true}).post(t, "/api/conversations", body).wants(t, 503)
		uid := ada.conversation(t, "talk").UID
		ada.post(t, "/api/conversations", body).wants(t, 200)
		if ada.conversation(t, "talk").UID != uid {
			t.Error("the conversation was recreated")
		}
	})
}
