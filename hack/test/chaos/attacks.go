package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
)

// attacks are all attacks of the tenant. They run at the same time.
var attacks = []attack{
	// Attacks with kubectl and the rights of the ClusterRole "edit".
	{"create large Conversations", 2 * time.Second, 1, createLargeConversations},
	{"create large UserSettings", 2 * time.Second, 1, createLargeSettings},
	{"create labelled Secrets with large metadata", time.Second, 1, createLabelledSecrets},
	{"queue hundreds of sessions", 250 * time.Millisecond, 1, queueSessions},
	{"change a Secret of all queued sessions", time.Second, 1, changeSharedSecret},
	{"forge the Secret of a session", 3 * time.Second, 1, forgeSessionSecret},
	{"forge a status", time.Second, 1, forgeStatus},
	{"name a class without a right", time.Second, 1, nameForbiddenClass},
	{"remove the time limits of a running session", 10 * time.Second, 1, removeTimeLimits},
	{"request a huge volume", time.Second, 1, requestHugeVolume},
	{"delete and create settings", time.Second, 1, recreateSettings},
	{"list own objects", 2 * time.Second, 1, listObjects},
	// Attacks over HTTP with a session key.
	{"render brackets", 250 * time.Millisecond, 11, renderBrackets},
	{"read large events slowly", 100 * time.Millisecond, 20, readSlowly},
	{"read archived events slowly", 100 * time.Millisecond, 8, readArchiveSlowly},
	{"open streams", 100 * time.Millisecond, 40, openStreams},
	{"send large messages", 2 * time.Second, 2, sendLargeMessages},
	{"send invalid bodies", time.Second, 4, sendInvalidBodies},
	{"guess keys", 100 * time.Millisecond, 4, guessKeys},
	{"list conversations", 250 * time.Millisecond, 8, listConversations},
	{"store many secrets", 500 * time.Millisecond, 2, storeSecrets},
	{"create sign-in links", 200 * time.Millisecond, 2, createLinks},
	{"print secrets in a session", 5 * time.Second, 1, printSecrets},
	{"write large events in a session", 10 * time.Second, 1, writeLargeEvents},
	// Attacks with the token of a session.
	{"upload to the archive", time.Second, 2, uploadToArchive},
}

// conversation returns a Conversation of the tenant.
func (t *tenant) conversation(name string) *v1alpha1.Conversation {
	return &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: name},
		Spec: v1alpha1.ConversationSpec{UserSettingsName: tenantName}}
}

func (t *tenant) patch(ctx context.Context, o client.Object, body string) error {
	return t.api.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(body)))
}

// cycle creates an object, or deletes the object if it exists. The attack can thus be repeated
// without end, and does not fill the API server's disk.
func (t *tenant) cycle(ctx context.Context, o client.Object) error {
	err := t.api.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		return client.IgnoreNotFound(t.api.Delete(ctx, o))
	}
	return err
}

// largeTools returns a tool server configuration of about 1 MiB.
func largeTools() *v1alpha1.MCPConfig {
	value := strings.Repeat("x", 4096)
	config := &v1alpha1.MCPConfig{}
	for n := range 4 {
		server := v1alpha1.MCPStdioServer{Name: fmt.Sprint("server", n), Command: "true"}
		for m := range 60 {
			server.Env = append(server.Env, v1alpha1.MCPEnvVar{Name: fmt.Sprint("V", m), Value: &value})
		}
		config.StdioServers = append(config.StdioServers, server)
	}
	return config
}

func largeAnnotations() map[string]string {
	return map[string]string{"example.com/large": strings.Repeat("x", 250<<10)}
}

func createLargeConversations(ctx context.Context, t *tenant, n int) error {
	c := t.conversation(fmt.Sprint("large-", n%200))
	c.Annotations = largeAnnotations()
	c.Spec.Suspend, c.Spec.MCPConfig = true, largeTools()
	return t.cycle(ctx, c)
}

func createLargeSettings(ctx context.Context, t *tenant, n int) error {
	return t.cycle(ctx, &v1alpha1.UserSettings{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: fmt.Sprint("large-", n%50),
			Annotations: largeAnnotations()},
		Spec: v1alpha1.UserSettingsSpec{MCPConfig: largeTools()},
	})
}

func createLabelledSecrets(ctx context.Context, t *tenant, n int) error {
	return t.cycle(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: fmt.Sprint("labelled-", n%100),
			Annotations: largeAnnotations(),
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
				v1alpha1.LabelUserSettings: tenantName}},
		Type: v1alpha1.SecretTypeUserKey,
	})
}

// queueSessions creates hundreds of sessions, and then changes them again and again. It deletes no
// session, because each deletion of a running session starts a queued session. The starts would
// load the node, which all sessions share here.
func queueSessions(ctx context.Context, t *tenant, n int) error {
	c := t.conversation(fmt.Sprint("queued-", n%300))
	if n < 300 {
		return t.api.Create(ctx, c)
	}
	return t.patch(ctx, c, fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`, n))
}

// changeSharedSecret changes the Secret that contains the model's key. Every session of the tenant
// uses this Secret.
func changeSharedSecret(ctx context.Context, t *tenant, n int) error {
	settings := &v1alpha1.UserSettings{}
	if err := t.api.Get(ctx, client.ObjectKey{Namespace: tenantName, Name: tenantName}, settings); err != nil {
		return err
	}
	if settings.Spec.LLMAPIKeyRef == nil {
		return errors.New("the settings have no key")
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: settings.Spec.LLMAPIKeyRef.Name}}
	return t.patch(ctx, secret, fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`, n))
}

// forgeSessionSecret replaces the Secret of a session with a Secret that names another class, and
// deletes the pod, so that the next attempt uses the forged Secret.
func forgeSessionSecret(ctx context.Context, t *tenant, n int) error {
	c := t.conversation(fmt.Sprint("forged-", n%5))
	if err := client.IgnoreAlreadyExists(t.api.Create(ctx, c.DeepCopy())); err != nil {
		return err
	}
	if err := t.api.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
		return err
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: tenantName, Name: v1alpha1.SessionName(c.Name)}
	if err := t.api.Get(ctx, key, secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	forged := &corev1.Secret{Type: secret.Type, Immutable: secret.Immutable, Data: secret.Data,
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, Labels: secret.Labels,
			Annotations: secret.Annotations, OwnerReferences: secret.OwnerReferences}}
	var document map[string]any
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &document); err != nil {
		return err
	}
	settings, _ := document["settings"].(map[string]any)
	settings["sessionClassName"], settings["remoteRuntimeResourceFactor"] = forbiddenClass, 64
	forged.Data[session.DocumentFile], _ = json.Marshal(document)
	if err := client.IgnoreNotFound(t.api.Delete(ctx, secret)); err != nil {
		return err
	}
	if err := t.api.Create(ctx, forged); err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: secret.Name}}
	return client.IgnoreNotFound(t.api.Delete(ctx, pod)) // the manager then reads the forged Secret for a new pod
}

func forgeStatus(ctx context.Context, t *tenant, _ int) error {
	return t.api.Status().Patch(ctx, t.conversation(target), client.RawPatch("application/merge-patch+json",
		[]byte(`{"status":{"sessionClass":{"name":"`+forbiddenClass+`"},"podIP":"192.0.2.1","state":"RUNNING"}}`)))
}

func nameForbiddenClass(ctx context.Context, t *tenant, n int) error {
	c := t.conversation(fmt.Sprint("class-", n))
	c.Spec.SessionClassName = ptr.To(forbiddenClass)
	return t.api.Create(ctx, c)
}

// removeTimeLimits deletes the UserSettings that name the class of a running session. It then tries
// to remove the session's time limits.
func removeTimeLimits(ctx context.Context, t *tenant, n int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	name := fmt.Sprint("lifetime-", n)
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: name},
		Spec: v1alpha1.UserSettingsSpec{SessionClassName: ptr.To(limitedClass)}}
	c := t.conversation(name)
	c.Spec.UserSettingsName = name
	for _, o := range []client.Object{settings, c} {
		if err := t.api.Create(ctx, o); err != nil {
			return err
		}
		defer func() { _ = t.api.Delete(ctx, o) }()
	}
	if err := t.awaitRunning(ctx, name); err != nil {
		return err
	}
	if err := t.api.Delete(ctx, settings); err != nil {
		return err
	}
	err := t.patch(ctx, t.conversation(name), `{"spec":{"maxDuration":"0s","idleTimeout":"0s"}}`)
	if err == nil {
		t.report.violation(checkClass, "a running session has no time limits any more")
	}
	return err
}

func requestHugeVolume(ctx context.Context, t *tenant, n int) error {
	c := t.conversation(fmt.Sprint("volume-", n%20))
	c.Spec.Workspace = &v1alpha1.Workspace{Size: "100Ti", StorageClassName: ptr.To("fast")}
	return t.cycle(ctx, c)
}

func recreateSettings(ctx context.Context, t *tenant, _ int) error {
	return t.cycle(ctx, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: tenantName, Name: "again"}})
}

func listObjects(ctx context.Context, t *tenant, _ int) error {
	return t.api.List(ctx, &v1alpha1.ConversationList{}, client.InNamespace(tenantName), client.Limit(10))
}

// ask sends a request to a facade and passes the response body to the function read.
func (t *tenant) ask(ctx context.Context, method, path, key string, body []byte, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, method, t.http.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set(rest.KeyHeader, key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return &parley.Refusal{Code: response.StatusCode, Text: string(text)}
	}
	return read(response.Body)
}

func discard(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// slowReader returns a function that reads 1 KiB every second, for 20 seconds.
func slowReader(ctx context.Context) func(io.Reader) error {
	return func(r io.Reader) error {
		for n := 0; n < 20 && ctx.Err() == nil; n++ {
			if _, err := io.CopyN(io.Discard, r, 1<<10); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			_ = cluster.Sleep(ctx, time.Second)
		}
		return nil
	}
}

func (t *tenant) message(ctx context.Context, name, text string) error {
	body, err := json.Marshal(map[string]string{"message": text})
	if err != nil {
		return err
	}
	return t.ask(ctx, http.MethodPost, "/api/conversations/"+name+"/message", t.http.key, body, discard)
}

func renderBrackets(ctx context.Context, t *tenant, _ int) error {
	body := []byte(`{"texts": ["` + strings.Repeat("[", 250_000) + `"]}`)
	return t.ask(ctx, http.MethodPost, "/api/markdown", t.http.key, body, discard)
}

func readSlowly(ctx context.Context, t *tenant, _ int) error {
	return t.ask(ctx, http.MethodGet, "/api/conversations/"+target+"/trajectory", t.http.key, nil, slowReader(ctx))
}

func readArchiveSlowly(ctx context.Context, t *tenant, _ int) error {
	return t.ask(ctx, http.MethodGet, "/api/conversations/"+ended+"/trajectory", t.http.key, nil, slowReader(ctx))
}

func openStreams(ctx context.Context, t *tenant, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := t.ask(ctx, http.MethodGet, "/api/conversations/"+target+"/events/stream", t.http.key, nil, slowReader(ctx))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func sendLargeMessages(ctx context.Context, t *tenant, n int) error {
	return t.message(ctx, target, fmt.Sprint(n, strings.Repeat(" x", 500_000)))
}

func sendInvalidBodies(ctx context.Context, t *tenant, n int) error {
	body := bytes.Repeat([]byte("["), []int{100, 3 << 20, 5 << 20}[n%3])
	return t.ask(ctx, http.MethodPost, "/api/settings", t.http.key, body, discard)
}

func guessKeys(ctx context.Context, t *tenant, n int) error {
	return t.ask(ctx, http.MethodGet, "/api/settings", fmt.Sprintf("%052d", n), nil, discard)
}

func listConversations(ctx context.Context, t *tenant, _ int) error {
	return t.ask(ctx, http.MethodGet, "/api/conversations?limit=100", t.http.key, nil, discard)
}

func storeSecrets(ctx context.Context, t *tenant, n int) error {
	body, err := json.Marshal(map[string]string{"name": fmt.Sprint("SECRET_", n%200), "value": strings.Repeat("x", 50_000),
		"description": "large"})
	if err != nil {
		return err
	}
	return t.ask(ctx, http.MethodPost, "/api/secrets", t.http.key, body, discard)
}

func createLinks(ctx context.Context, t *tenant, _ int) error {
	return t.ask(ctx, http.MethodPost, "/api/signin/link", t.http.key, nil, discard)
}

// printSecrets lets the agent print its environment, and searches the events for secrets.
func printSecrets(ctx context.Context, t *tenant, _ int) error {
	if err := t.message(ctx, target, printSecretsMessage); err != nil {
		return err
	}
	return t.ask(ctx, http.MethodGet, "/api/conversations/"+target+"/events?limit=100&reverse=true", t.http.key, nil,
		func(r io.Reader) error {
			text, err := io.ReadAll(r)
			t.report.checkForKeys(text, "the events of the tenant's session")
			return err
		})
}

func writeLargeEvents(ctx context.Context, t *tenant, _ int) error {
	return t.message(ctx, target, largeOutputMessage)
}

// uploadToArchive sends reports and invalid segments with the token of a session. The tenant may
// read this token in the session's Secret.
func uploadToArchive(ctx context.Context, t *tenant, n int) error {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: tenantName, Name: v1alpha1.SessionName(target)}
	if err := t.api.Get(ctx, key, secret); err != nil {
		return err
	}
	var document session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &document); err != nil {
		return err
	}
	path, body := session.ArchiveTurn, []byte(`{"state":"Failed","reason":"TurnFailed","message":"x"}`)
	if n%2 > 0 {
		path, body = session.ArchiveEvents+"?from=0&journal=x", bytes.Repeat([]byte("{}\n"), 1<<20)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, document.ArchiveURL+session.ArchiveRoot+document.UID+
		path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set(session.TokenHeader, string(secret.Data[session.ArchiveTokenFile]))
	insecure := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer insecure.CloseIdleConnections()
	response, err := insecure.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &parley.Refusal{Code: response.StatusCode}
	}
	return nil
}
