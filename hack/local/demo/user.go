package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
)

const (
	userName = "demo"
	// gitProvider is the provider name for tokens of git hosts that serve Gitea's API.
	gitProvider  = string(v1alpha1.EnterpriseSSO)
	pollInterval = 100 * time.Millisecond
)

// user is the demo's own user, so that the demo does not change the developer's settings.
type user struct {
	options
	cluster client.Client
	key     string
}

// findFacade checks that a facade responds. Its error tells the user to start `make run`.
func findFacade(ctx context.Context, facade string) error {
	if err := cluster.HTTPProbe(facade+"/alive", nil)(ctx); err != nil {
		return fmt.Errorf("no facade answers at %s: start `make run` first, in another terminal; if it runs with PORT=, "+
			"pass the same PORT= here: %w", facade, err)
	}
	return nil
}

func newUser(ctx context.Context, o options) (*user, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(o.state, "kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("%w; is `make run` up?", err)
	}
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return nil, err
	}
	admin, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("%w; is `make run` up?", err)
	}
	u := &user{options: o, cluster: admin}
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: userName}}
	if err := admin.Create(ctx, settings); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("%w; is `make run` up?", err)
	}
	return u, cluster.Retry(ctx, pollInterval, func(ctx context.Context) (err error) {
		u.key, err = parley.SessionKey(ctx, admin, client.ObjectKeyFromObject(settings))
		return err
	})
}

func until(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextCancel(ctx, pollInterval, true, condition)
}

// post sends a request to the facade. It retries after status 401, because the facade may not know
// the new user yet.
func (u *user) post(ctx context.Context, path string, body, answer any) error {
	return until(ctx, func(ctx context.Context) (bool, error) {
		err := parley.Send(ctx, http.DefaultClient, http.MethodPost, u.facade+path, u.key, body, answer)
		if refusal, is := errors.AsType[*parley.Refusal](err); is && refusal.Code == http.StatusUnauthorized {
			return false, nil
		}
		return err == nil, err
	})
}

func (u *user) storeSettings(ctx context.Context, host *gitHost) error {
	settings := map[string]any{
		"llm_model": u.model, "llm_api_key": u.options.key, "llm_base_url": nil,
		"git_user_name": "Demo", "git_user_email": "demo@example.com",
		"secrets_store": map[string]any{"provider_tokens": map[string]any{
			gitProvider: map[string]any{"token": host.token, "host": host.address}}},
	}
	if u.baseURL != "" {
		settings["llm_base_url"] = u.baseURL
	}
	var answer struct {
		Message string `json:"message"`
	}
	if err := u.post(ctx, "/api/settings", settings, &answer); err != nil {
		return err
	}
	fmt.Printf("POST /api/settings: %s\n", answer.Message)
	return nil
}

func (u *user) startConversation(ctx context.Context, host *gitHost) (id string, err error) {
	var answer struct {
		ID string `json:"conversation_id"`
	}
	err = u.post(ctx, "/api/conversations", map[string]any{"repository": host.url() + ".git",
		"git_provider": gitProvider, "initial_user_msg": message}, &answer)
	return answer.ID, err
}

func (u *user) waitRunning(ctx context.Context, id string) error {
	said := ""
	return until(ctx, func(ctx context.Context) (bool, error) {
		var c v1alpha1.Conversation
		if err := u.cluster.Get(ctx, client.ObjectKey{Namespace: u.namespace, Name: id}, &c); err != nil {
			return false, err
		}
		if now := strings.TrimSpace(fmt.Sprintf("%s %s", c.Status.State, c.Status.Reason)); now != said {
			said = now
			fmt.Println(now)
		}
		if c.Status.State == v1alpha1.StateStopped {
			return false, fmt.Errorf("the session ended: %s: %s", c.Status.Reason, c.Status.Message)
		}
		return c.Status.State == v1alpha1.StateRunning, nil
	})
}
