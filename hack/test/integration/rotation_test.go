package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// rotate requests a rotation, and waits until the manager reports it as done.
func rotate(t *testing.T, request, done string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: session.SigningSecret}}
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: "1"}}}`, request)
	if err := suite.Client.Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, func() error {
		err := suite.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret)
		if err == nil && secret.Annotations[done] != "1" {
			err = errors.New("the key is not rotated yet")
		}
		return err
	})
}

func (p *person) talk(t *testing.T, id, message string) {
	t.Helper()
	p.wants(t, http.StatusOK, "POST", "/api/conversations/"+id+"/message", jsonOf(t, map[string]any{"message": message}))
	testenv.Await(t, func() error {
		if got := texts(p.events(t, id)); !strings.HasSuffix(got, "user: "+message+"; agent: Scripted.") {
			return fmt.Errorf("the messages are %s", got)
		}
		return nil
	})
	p.awaitAgent(t, id, session.StateAwaiting)
}

// awaitArchived waits until the archive has all current events of a session.
func (p *person) awaitArchived(t *testing.T, id string) {
	t.Helper()
	live, uid := len(p.events(t, id)), string(p.conversation(t, id).UID)
	testenv.Await(t, func() error {
		if got := archivedEvents(t, uid); got < live {
			return fmt.Errorf("%d of %d events are archived", got, live)
		}
		return nil
	})
}

// The manager uses the new key immediately. The facade and the archive get the new key when the
// kubelet updates their volumes. A running session never gets the new key.
func TestARotationOfTheSigningKeyInterruptsNoSession(t *testing.T) {
	ada := newPerson(t, nil, says("I begin.", bash("echo kept > made")))
	ada.converse(t, "before", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "before", session.StateAwaiting)

	rotate(t, session.AnnotationRotateSigningKey, session.AnnotationRotatedSigningKey)
	ada.talk(t, "before", "The facade has the old key.")
	ada.converse(t, "during", nil)
	ada.talk(t, "during", "The facade has the old key, and the session the new key.")
	ada.awaitArchived(t, "before")
	ada.awaitArchived(t, "during")

	if err := suite.MountSigningKey(context.Background()); err != nil {
		t.Fatal(err)
	}
	ada.talk(t, "before", "The facade has the new key, and the session the old key.")
	ada.talk(t, "during", "The facade has the new key.")
	ada.converse(t, "after", nil)
	ada.talk(t, "after", "Both have the new key.")
	for _, id := range []string{"before", "during", "after"} {
		ada.awaitArchived(t, id)
	}

	// A session can restore a snapshot that was saved before the snapshot secret was rotated.
	ada.stop(t, "before")
	rotate(t, session.AnnotationRotateSnapshotSecret, session.AnnotationRotatedSnapshotSecret)
	ada.wants(t, http.StatusOK, "POST", "/api/conversations/before/start", "{}")
	ada.awaitState(t, "before", v1alpha1.StateRunning)
	if got := ada.wants(t, http.StatusOK, "GET", "/api/conversations/before/select-file?file=made",
		""); got != `{"code":"kept\n"}` {
		t.Errorf("the restored file is %s", got)
	}
	ada.talk(t, "before", "The session has the new key.")
}

func archivedEvents(t *testing.T, uid string) (count int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(archiveDir(), uid, "events", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		count += bytes.Count(text, []byte("\n"))
	}
	return count
}
