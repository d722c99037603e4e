package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/facadeenv"
)

const (
	namespace = "default"
	user      = "bench"
)

// bench is an API server with the webhook, and a facade. No manager runs, so that only the requests
// are measured.
type bench struct {
	env    *facadeenv.Env
	facade *facadeenv.Facade
	dir    string
}

func start(program, keyHash string) (*bench, error) {
	dir, err := os.MkdirTemp("", "parley-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{dir: dir}
	if b.env, err = facadeenv.Start(dir, false); err == nil {
		err = b.createUser(keyHash)
	}
	if err == nil {
		b.facade, err = b.env.StartFacade(program, "--user-rate=0")
	}
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

func (b *bench) stop() (err error) {
	if b.facade != nil {
		err = b.facade.Stop()
	}
	if b.env != nil {
		err = errors.Join(err, b.env.Stop())
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// largeClass returns a default class whose limit lets one user own all measured Conversations.
func largeClass() *v1alpha1.SessionClass {
	return &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultSessionClass},
		Spec: v1alpha1.SessionClassSpec{MaxConversationsPerUser: ptr.To[int32](1_000_000)}}
}

// createUser creates UserSettings with a session key.
func (b *bench) createUser(keyHash string) error {
	if err := b.env.Client.Create(context.Background(), largeClass()); err != nil {
		return err
	}
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
		Spec: v1alpha1.UserSettingsSpec{LLMModel: ptr.To("ollama/small")}}
	if err := b.env.Client.Create(context.Background(), settings); err != nil {
		return err
	}
	settings.Status.SessionKeyHash = keyHash
	return b.env.Client.Status().Update(context.Background(), settings)
}

// All measurements create this conversation.
var wanted = rest.ConversationRequest{
	Repository: ptr.To("example/widgets"), GitProvider: ptr.To("github"), SelectedBranch: ptr.To("main"),
	InitialUserMsg: ptr.To("The tests of the parser fail on Windows. Find out why and fix it."),
}

func newConnection() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

func (b *bench) httpCreator(key string) operation {
	connection := newConnection()
	return func(ctx context.Context) error {
		var created rest.ConversationResponse
		return parley.Send(ctx, connection, http.MethodPost, b.facade.URL+"/api/conversations", key, wanted, &created)
	}
}

// directCreator returns an operation that creates the object that the facade would create, but
// directly in the API server and with the facade's rights.
func (b *bench) directCreator() (operation, error) {
	kind := v1alpha1.SchemeGroupVersion.WithKind("Conversation")
	conversations, err := dynamic.NewForConfig(b.env.AsFacade)
	if err != nil {
		return nil, err
	}
	resource := conversations.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version,
		Resource: "conversations"}).Namespace(namespace)
	return func(ctx context.Context) error {
		object := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{
				"name":        strings.ReplaceAll(string(uuid.NewUUID()), "-", ""),
				"labels":      map[string]any{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
				"annotations": map[string]any{"parley.dev/created-at": time.Now().UTC().Format(time.RFC3339Nano)},
			},
			"spec": map[string]any{
				"userSettingsName": user, "repository": *wanted.Repository, "gitProvider": *wanted.GitProvider,
				"selectedBranch": *wanted.SelectedBranch, "initialUserMsg": *wanted.InitialUserMsg,
			},
		}}
		object.SetGroupVersionKind(kind)
		_, err := resource.Create(ctx, object, metav1.CreateOptions{})
		return err
	}, nil
}

func (b *bench) httpGetter(key string) (operation, error) {
	var list v1alpha1.ConversationList
	if err := b.env.Client.List(context.Background(), &list, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return nil, err
	}
	connection, url := newConnection(), b.facade.URL+"/api/conversations/"+list.Items[0].Name
	return func(ctx context.Context) error {
		var shown rest.Conversation
		return parley.Send(ctx, connection, http.MethodGet, url, key, nil, &shown)
	}, nil
}
