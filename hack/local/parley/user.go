package parley

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// SessionKey returns the session key of a user. It fails until the manager has generated the key.
func SessionKey(ctx context.Context, c client.Client, user client.ObjectKey) (string, error) {
	var settings v1alpha1.UserSettings
	if err := c.Get(ctx, user, &settings); err != nil {
		return "", err
	}
	var secret corev1.Secret
	name := v1alpha1.SessionKeySecretName(user.Name)
	if err := c.Get(ctx, client.ObjectKey{Namespace: user.Namespace, Name: name}, &secret); err != nil {
		return "", err
	}
	key := string(secret.Data[v1alpha1.SessionKeySecretKey])
	if settings.Status.SessionKeyHash == "" || key == "" {
		return "", fmt.Errorf("UserSettings %s has no session key yet", user.Name)
	}
	return key, nil
}

// Refusal is the error for a response of the facade with a status other than 200.
type Refusal struct {
	Code int
	Text string
}

func (r *Refusal) Error() string { return fmt.Sprintf("the facade answers %d %s", r.Code, r.Text) }

// Send sends a request to the facade with a session key, and decodes the response.
func Send(ctx context.Context, connection *http.Client, method, url, key string, body, into any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(content))
	if err != nil {
		return err
	}
	request.Header.Set(rest.KeyHeader, key)
	request.Header.Set("Content-Type", "application/json")
	response, err := connection.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return &Refusal{response.StatusCode, string(text)}
	}
	return json.Unmarshal(text, into)
}
