package controllers

import (
	"bytes"
	"context"
	"fmt"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// secretReader reads the Secrets of one namespace, each at most once.
type secretReader struct {
	client    client.Reader
	namespace string
	secrets   map[string]*corev1.Secret // a missing Secret has no UID
}

func newSecretReader(c client.Reader, namespace string) *secretReader {
	return &secretReader{client: c, namespace: namespace, secrets: map[string]*corev1.Secret{}}
}

// value returns the value of a reference, or a blocker if there is no value.
func (r *secretReader) value(ctx context.Context, ref v1alpha1.SecretReference) ([]byte, *lifecycle.Blocker, error) {
	secret, err := r.secret(ctx, ref.Ref.Name)
	if err != nil {
		return nil, nil, err
	}
	if secret.UID == "" {
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonSecretNotFound, "%s: Secret %s does not exist", ref.Path,
			ref.Ref.Name), nil
	}
	// A value that consists only of newlines counts as empty. Any other value keeps its newlines,
	// because an SSH key needs its last newline.
	value := secret.Data[ref.Ref.Key]
	if len(bytes.TrimRight(value, "\r\n")) == 0 {
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonKeyNotFound, "%s: Secret %s has no key %s, or the key is empty",
			ref.Path, ref.Ref.Name, ref.Ref.Key), nil
	}
	if unfit := unfitForVariable(value); unfit != "" {
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonKeyUnfit, "%s: the key %s of Secret %s %s", ref.Path, ref.Ref.Key,
			ref.Ref.Name, unfit), nil
	}
	return value, nil, nil
}

// unfitForVariable returns why a value cannot be an environment variable; empty if it can.
func unfitForVariable(value []byte) string {
	switch {
	case len(value) > session.MaxSecret:
		return fmt.Sprintf("is longer than %d KiB", session.MaxSecret>>10)
	case bytes.IndexByte(value, 0) >= 0 || !utf8.Valid(value):
		return "must be UTF-8 text without zero bytes"
	}
	return ""
}

// secret returns a Secret. If the Secret does not exist, the result has no UID.
func (r *secretReader) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	if secret, known := r.secrets[name]; known {
		return secret, nil
	}
	secret := &corev1.Secret{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	}
	r.secrets[name] = secret
	return secret, nil
}

// forget makes the secretReader read a Secret again when the Secret is next used.
func (r *secretReader) forget(name string) { delete(r.secrets, name) }
