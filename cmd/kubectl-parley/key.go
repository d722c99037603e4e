package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// pollInterval is the interval between two reads of an object that is not watched.
const pollInterval = 250 * time.Millisecond

// key is `kubectl parley key`, the only command that prints a key.
type key struct {
	waitFlags
	rotate bool
}

func newKey(p *plugin) *cobra.Command {
	k := &key{}
	cmd := p.named(&cobra.Command{
		Use:   "key NAME",
		Short: "Print the session key of a user, or rotate it",
		Long: `Print the session key of a user. HTTP clients authenticate with this key.

NAME is the name of the user's UserSettings. You need permission to read the Secret with the key.`,
		Example: `  export PARLEY_KEY="$(kubectl parley key ada)"
  kubectl parley key ada --rotate`,
		ValidArgsFunction: firstArgument(p.complete(&v1alpha1.UserSettingsList{})),
	}, k.run)
	cmd.Flags().BoolVar(&k.rotate, "rotate", false, "Replace the key, and print the new one. The old key no longer works.")
	cmd.Flags().DurationVar(&k.timeout, "timeout", time.Minute, "How long to wait for the operator to create a key.")
	return cmd
}

func (k *key) run(ctx context.Context, c *cluster, name string) (err error) {
	var old types.UID
	if k.rotate {
		if old, err = discardKey(ctx, c, name); err != nil {
			return err
		}
	}
	ctx, cancel := k.bound(ctx)
	defer cancel()
	value, err := awaitKey(ctx, c, name, old)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.Out, value)
	return err
}

// discardKey deletes the Secret with the user's session key, and returns the Secret's UID. The
// operator then creates a new key. discardKey fails if the operator did not create the Secret.
func discardKey(ctx context.Context, c *cluster, user string) (types.UID, error) {
	settings := &v1alpha1.UserSettings{}
	if err := c.Get(ctx, c.key(user), settings); err != nil {
		return "", err
	}
	if ref := settings.Spec.SessionKeyRef; ref != nil {
		return "", fmt.Errorf("the key of %s is in Secret %s, which spec.sessionKeyRef names: change the key there",
			settings.Name, ref.Name)
	}
	secret := &corev1.Secret{}
	err := c.Get(ctx, c.key(v1alpha1.SessionKeySecretName(settings.Name)), secret)
	if apierrors.IsNotFound(err) {
		return "", nil // the operator is about to create one
	}
	if err != nil {
		return "", err
	}
	if secret.Type != v1alpha1.SecretTypeSessionKey {
		return "", fmt.Errorf("the Secret %s was not created by the operator: change the key in it yourself", secret.Name)
	}
	uid := secret.UID
	err = c.Delete(ctx, secret, client.Preconditions{UID: &uid})
	return uid, client.IgnoreNotFound(err)
}

// awaitKey waits until the operator has created a key and published its hash, because the facade
// does not accept the key earlier. The argument old is the UID of a deleted Secret, or empty.
// awaitKey ignores the key in that Secret.
func awaitKey(ctx context.Context, c *cluster, name string, old types.UID) (value string, err error) {
	p := newProgress(c.ErrOut)
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		settings := &v1alpha1.UserSettings{}
		if err := c.Get(ctx, c.key(name), settings); err != nil {
			return false, err
		}
		secret := &corev1.Secret{}
		ref := settings.Status.SessionKeyRef
		if ref == nil {
			p.say("waiting for the operator to create a key")
			return false, nil
		}
		if err := c.Get(ctx, c.key(ref.Name), secret); client.IgnoreNotFound(err) != nil {
			return false, err
		}
		value = sessionKey(secret, ref)
		sum := sha256.Sum256([]byte(value))
		if value == "" || secret.UID == old || hex.EncodeToString(sum[:]) != settings.Status.SessionKeyHash {
			p.say("waiting for the operator to publish the key's hash")
			return false, keyProblem(settings)
		}
		return true, nil
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("the session key of %s is not ready yet: %w", name, context.Cause(ctx))
	}
	return value, err
}

// sessionKey returns the session key in a Secret. Like the manager, it ignores surrounding white
// space: a key from a file may end with a newline.
func sessionKey(secret *corev1.Secret, ref *v1alpha1.SecretKeyRef) string {
	return string(bytes.TrimSpace(secret.Data[ref.Key]))
}

// keyProblem returns the reason why the operator rejects the user's key, or nil.
func keyProblem(settings *v1alpha1.UserSettings) error {
	c := meta.FindStatusCondition(settings.Status.Conditions, v1alpha1.ConditionSessionKeyReady)
	if c == nil || c.Reason != v1alpha1.ReasonKeyTooShort && c.Reason != v1alpha1.ReasonKeyUnfit &&
		c.Reason != v1alpha1.ReasonForeignObject {
		return nil
	}
	return fmt.Errorf("%s: %s", c.Reason, c.Message)
}
