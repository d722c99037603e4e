package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// endedPodKept checks that the pod of an ended session and its log stay until the TTL is over.
func endedPodKept(t *t) {
	const ttl = time.Minute
	ns := t.newNamespace()
	defer t.makeClass(ns, func(s *v1alpha1.SessionClassSpec) {
		s.Lifetimes = &v1alpha1.SessionLifetimes{EndedPodTTL: &metav1.Duration{Duration: ttl}}
	})()
	c := t.startWork(ns, "done", ofClass(ns))
	uid := t.podOf(c).UID
	t.shell(c, "touch finish")
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	t.gone(&corev1.Secret{}, ns, v1alpha1.SessionName(c.Name)) // shows that the manager has handled the end
	t.retry(func(context.Context) error {
		pod := t.podOf(c)
		if pod.UID != uid || pod.DeletionTimestamp != nil {
			t.Fatalf("the pod was deleted before its TTL")
		}
		if pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("the pod is %s", pod.Status.Phase)
		}
		return nil
	})
	log, err := t.kubectl(t.ctx, "logs", v1alpha1.SessionName(c.Name), "--container=session", "--namespace="+ns)
	t.must(err)
	if !strings.Contains(log, "agent is done") {
		t.Errorf("the log lacks the agent's last line:\n%s", log)
	}
	t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName(c.Name))
	if kept := time.Since(c.Status.StopTime.Time); kept < ttl {
		t.Errorf("the pod was deleted after %s", kept)
	}
}
