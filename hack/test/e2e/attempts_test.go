package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// writerMessage is the message that the agent "Writer" writes to a file.
const writerMessage = "Write this down once."

func useWriter(s *v1alpha1.UserSettingsSpec) { s.Agent = ptr.To(writer) }

func (t *t) startWork(namespace, name string, change func(*v1alpha1.ConversationSpec)) *v1alpha1.Conversation {
	t.addWriter()
	t.settings(namespace, useWriter)
	c := t.running(namespace, name, func(s *v1alpha1.ConversationSpec) {
		s.InitialUserMsg = ptr.To(writerMessage)
		if change != nil {
			change(s)
		}
	})
	t.retry(func(ctx context.Context) error {
		got, err := t.exec(ctx, c, "cat agent-was-here")
		if err == nil && got != writerMessage {
			err = fmt.Errorf("the agent wrote %q", got)
		}
		return err
	})
	return c
}

func podDeletedAtWork(t *t) {
	ns := t.newNamespace()
	c := t.startWork(ns, "kept", useVolume)
	// An agent that gets its message a second time would overwrite the file agent-was-here.
	t.shell(c, "echo precious > note; echo untouched > agent-was-here")
	first := t.podOf(c)
	t.must(t.client.Delete(t.ctx, first))
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if !strings.Contains(c.Status.Message, "interrupted") {
		t.Errorf("the message does not report the interruption: %s", c.Status.Message)
	}
	second := t.podOf(c)
	if c.Status.Attempt != 2 || c.Status.Restarts != 1 || second.UID == first.UID ||
		second.Labels[v1alpha1.LabelAttempt] != "2" {
		t.Errorf("the next pod has attempt %s after %d restarts, but the status says %d",
			second.Labels[v1alpha1.LabelAttempt], c.Status.Restarts, c.Status.Attempt)
	}
	if note, written := t.file(c, "note"), t.file(c, "agent-was-here"); note != "precious" || written != "untouched" {
		t.Errorf("the workspace holds %q, and the agent wrote %q", note, written)
	}
}

func podLostAtWork(t *t) {
	ns := t.newNamespace()
	c := t.startWork(ns, "lost", ofClass(scratchClass))
	t.must(t.client.Delete(t.ctx, t.podOf(c)))
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonLost)
	t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName(c.Name))
	// When the manager has observed this change, it has also handled the loss of the pod. If it
	// started a new attempt after the loss, the checks below find the attempt.
	t.edit(c, func(s *v1alpha1.ConversationSpec) { s.IdleTimeout = &metav1.Duration{Duration: time.Hour} })
	changed := c.Generation
	t.retry(func(ctx context.Context) error {
		if err := t.client.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if c.Status.ObservedGeneration < changed {
			return fmt.Errorf("generation %d is not observed", changed)
		}
		return nil
	})
	pods := &corev1.PodList{}
	t.must(t.client.List(t.ctx, pods, client.InNamespace(ns)))
	if len(pods.Items) > 0 || c.Status.Attempt > 1 || c.Status.Reason != v1alpha1.ReasonLost {
		t.Errorf("found %d pods in attempt %d: %s, %s", len(pods.Items), c.Status.Attempt, c.Status.State, c.Status.Reason)
	}
}

// stopAndStartOverHTTP checks that the files of a session remain after a stop and a start. The
// conversation requests no workspace, so the session gets the volume of the default class.
func stopAndStartOverHTTP(t *t) {
	u := t.newUser()
	c := t.converse(u, rest.Settings{Language: rest.Set("en")}, "stays", "")
	if c.Status.Workspace != v1alpha1.WorkspaceClass {
		t.Errorf("its workspace is %s", c.Status.Workspace)
	}
	t.shell(c, "echo precious > /workspace/note")
	t.post(u, "/api/conversations/stays/stop", nil, &rest.ConversationResponse{})
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	t.gone(&corev1.Pod{}, u.namespace, v1alpha1.SessionName("stays"))
	t.post(u, "/api/conversations/stays/start", nil, &rest.ConversationResponse{})
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if got := t.shell(c, "cat /workspace/note"); got != "precious" {
		t.Errorf("the workspace holds %q", got)
	}
}
