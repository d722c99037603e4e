package integration_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (p *person) archiveToken(t *testing.T, id string) string {
	t.Helper()
	secret := &corev1.Secret{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: v1alpha1.SessionName(id)},
		secret); err != nil {
		t.Fatal(err)
	}
	return string(secret.Data[session.ArchiveTokenFile])
}

// write sends a write request to the archive, in the name of an attempt. It returns the HTTP
// status.
func (p *person) write(t *testing.T, id, token string, claimed int) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("https://%s%s%s%s?%s=%d",
		suite.ArchiveAddress, session.ArchiveRoot, p.conversation(t, id).UID, session.ArchiveClaim, session.ArchiveAttempt,
		claimed), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := trustingClient(t, "").Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func (p *person) awaitRefused(t *testing.T, id, token string, claimed int) {
	t.Helper()
	testenv.Await(t, func() error {
		if code := p.write(t, id, token, claimed); code != http.StatusForbidden {
			return fmt.Errorf("a token of an ended attempt is answered with %d", code)
		}
		return nil
	})
}

// A stolen token must be useless after the end of its attempt.
func TestAnArchiveTokenIsRefusedAfterTheEndOfItsAttempt(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil)
	ada.converse(t, "talk", nil)
	ada.talk(t, "talk", "first")
	first := ada.archiveToken(t, "talk")
	if code := ada.write(t, "talk", first, 1); code != http.StatusOK {
		t.Fatalf("the running attempt is answered with %d", code)
	}
	ada.stop(t, "talk")
	ada.awaitRefused(t, "talk", first, 1)
	ada.wants(t, 200, "POST", "/api/conversations/talk/start", "{}")
	ada.awaitState(t, "talk", v1alpha1.StateRunning)
	ada.awaitRefused(t, "talk", first, 2)
	second := ada.archiveToken(t, "talk")

	// Delete the pod, so that attempt 3 begins and uses the Secret of attempt 2. The archive must
	// now refuse the token in this Secret, because attempt 2 has ended. The pod of attempt 3 has a
	// second token in an environment variable, and can write with it.
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = ada.namespace, v1alpha1.SessionName("talk")
	if err := suite.Client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, func() error {
		c := ada.conversation(t, "talk")
		if c.Status.Attempt != 3 || c.Status.State != v1alpha1.StateRunning {
			return fmt.Errorf("attempt %d is %s", c.Status.Attempt, c.Status.State)
		}
		if !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionPodReady) {
			return errors.New("the pod is not ready")
		}
		return nil
	})
	if ada.archiveToken(t, "talk") != second {
		t.Error("the replaced pod has another Secret")
	}
	ada.awaitRefused(t, "talk", second, 3)
	ada.talk(t, "talk", "third")
	ada.awaitArchived(t, "talk")
}
