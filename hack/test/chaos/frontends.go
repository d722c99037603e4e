package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// apiFrontend sends requests to the API server, as kubectl does.
type apiFrontend struct{ client client.Client }

// justStarted matches errors of an API server that has just started. The server forbids all
// requests until it has read its roles and policies.
var justStarted = regexp.MustCompile(`User "[^"]*" cannot |not yet ready to handle request`)

func answerTo(err error, name string) answer {
	status := apierrors.APIStatus(nil)
	switch {
	case err == nil:
		return answer{outcome: accepted, name: name}
	case !errors.As(err, &status):
		return answer{outcome: unknown}
	case apierrors.IsNotFound(err):
		return answer{outcome: refused, missing: true}
	case apierrors.IsForbidden(err) && justStarted.MatchString(err.Error()):
		return answer{outcome: refused, early: true}
	}
	// A status 4xx other than 429 means that the request was refused. After status 429 or a server
	// error, the outcome is unknown.
	if code := status.Status().Code; code >= 400 && code < 500 && code != http.StatusTooManyRequests {
		return answer{outcome: refused, message: err.Error()}
	}
	return answer{outcome: unknown}
}

func (f *apiFrontend) create(ctx context.Context, t *conversation) answer {
	c := &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.user.namespace, Name: t.name},
		Spec:       v1alpha1.ConversationSpec{UserSettingsName: t.user.name, InitialUserMsg: &t.marker, OneShot: t.oneShot},
	}
	if t.volume {
		c.Spec.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
	}
	return answerTo(client.IgnoreAlreadyExists(f.client.Create(ctx, c)), t.name)
}

func (f *apiFrontend) patch(ctx context.Context, t *conversation, spec string) answer {
	c := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: t.user.namespace, Name: t.name}}
	return answerTo(f.client.Patch(ctx, c, client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`))),
		t.name)
}

func (f *apiFrontend) stop(ctx context.Context, t *conversation) answer {
	return f.patch(ctx, t, `{"suspend":true}`)
}

func (f *apiFrontend) start(ctx context.Context, t *conversation) answer {
	if t.oneShot { // the session may have ended by itself
		return f.patch(ctx, t, fmt.Sprintf(`{"suspend":false,"restartAt":%q}`, time.Now().UTC().Truncate(time.Second).Format(
			time.RFC3339)))
	}
	return f.patch(ctx, t, `{"suspend":false}`)
}

func (f *apiFrontend) delete(ctx context.Context, t *conversation) answer {
	return answerTo(f.client.Delete(ctx, &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: t.user.namespace,
		Name: t.name}}), t.name)
}

func (f *apiFrontend) setIterations(ctx context.Context, u *user, number int32) answer {
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: u.name}}
	patch := fmt.Appendf(nil, `{"spec":{"maxIterations":%d}}`, number)
	return answerTo(f.client.Patch(ctx, settings, client.RawPatch("application/merge-patch+json", patch)), u.name)
}

// httpFrontend sends requests to any facade that accepts the connection.
type httpFrontend struct {
	url, key string
	client   *http.Client
	report   *report
}

func newHTTPFrontend(url, key string, r *report) *httpFrontend {
	return &httpFrontend{url: url, key: key, client: &http.Client{Timeout: callTimeout}, report: r}
}

// send sends a request, and checks that the response contains no keys.
func (f *httpFrontend) send(ctx context.Context, method, path string, body any, idempotencyKey string) (answer,
	[]byte) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // cannot happen: JSON can encode all bodies
	}
	request, err := http.NewRequestWithContext(ctx, method, f.url+path, bytes.NewReader(text))
	if err != nil {
		panic(err)
	}
	request.Header.Set(rest.KeyHeader, f.key)
	if idempotencyKey != "" {
		request.Header.Set("Idempotency-Key", idempotencyKey)
	}
	response, err := f.client.Do(request)
	if err != nil {
		return answer{outcome: unknown}, nil
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	f.report.checkForKeys(fmt.Append(nil, response.Header, string(content)), "the answer to "+method+" "+path)
	switch {
	case err != nil || response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests:
		return answer{outcome: unknown}, content
	case response.StatusCode == http.StatusNotFound:
		return answer{outcome: refused, missing: true}, content
	case response.StatusCode >= 400:
		return answer{outcome: refused, message: fmt.Sprint(response.StatusCode, " ", string(content))}, content
	}
	return answer{outcome: accepted}, content
}

func (f *httpFrontend) create(ctx context.Context, t *conversation) answer {
	request := rest.ConversationRequest{InitialUserMsg: &t.marker}
	if t.id != "" {
		request.ConversationID = &t.id
	}
	if t.toolKey != "" {
		request.MCPConfig = &rest.MCPConfig{SSEServers: []rest.MCPRemoteServer{{URL: "https://tools.example.com/sse",
			APIKey: rest.NewKey(t.toolKey)}}}
	}
	a, content := f.send(ctx, http.MethodPost, "/api/conversations", request, t.idempotencyKey)
	var response rest.ConversationResponse
	if a.outcome == accepted && (json.Unmarshal(content, &response) != nil || response.ConversationID == "") {
		f.report.violation(checkLost, "the response to the creation of %s has no id", t)
	}
	a.name = response.ConversationID
	return a
}

func (f *httpFrontend) stop(ctx context.Context, t *conversation) answer {
	a, _ := f.send(ctx, http.MethodPost, "/api/conversations/"+t.name+"/stop", nil, "")
	return a
}

func (f *httpFrontend) start(ctx context.Context, t *conversation) answer {
	a, _ := f.send(ctx, http.MethodPost, "/api/conversations/"+t.name+"/start", nil, "")
	return a
}

func (f *httpFrontend) delete(ctx context.Context, t *conversation) answer {
	a, content := f.send(ctx, http.MethodDelete, "/api/conversations/"+t.name, nil, "")
	if a.outcome == accepted && string(bytes.TrimSpace(content)) == "false" { // the object did not exist
		a = answer{outcome: refused, missing: true}
	}
	return a
}

func (f *httpFrontend) read(ctx context.Context, path string) outcome {
	a, _ := f.send(ctx, http.MethodGet, path, nil, "")
	return a.outcome
}

func (f *httpFrontend) storeSettings(ctx context.Context, key, secret, gitName string) answer {
	a, _ := f.send(ctx, http.MethodPost, "/api/settings", rest.Settings{
		LLMModel: rest.Set("openai/small"), LLMAPIKey: rest.NewKey(key), GitUserName: rest.Set(gitName),
		SecretsStore: rest.Set(rest.UserSecrets{CustomSecrets: map[string]*rest.CustomSecret{
			"TOKEN": {Secret: rest.NewKey(secret), Description: rest.Set(gitName)}}}),
	}, "")
	return a
}
