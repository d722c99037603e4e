package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	sessionUser = 1000
	// writer is the agent of most checks. It writes its message to a file, prints its environment,
	// and ends when a file "finish" exists.
	writer = "Writer"

	writerEntry = `command: [/bin/sh, -c, "cat > agent-was-here; env; while [ ! -e finish ]; do sleep 0.1; done; echo ` +
		`agent is done"]`

	// eater is an agent that allocates memory until it is killed.
	eater      = "Eater"
	eaterEntry = `command: [tail, /dev/zero]`
)

// restrictedLabels makes a namespace enforce the restricted Pod Security Standard.
var restrictedLabels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}

func (t *t) newNamespace() string {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-", Labels: restrictedLabels}}
	t.must(t.client.Create(t.ctx, ns))
	t.namespace = ns.Name
	return ns.Name
}

// cleanUp deletes the objects of a check. If the check failed, cleanUp first writes descriptions of
// the objects to the logs.
func (t *t) cleanUp() {
	if t.namespace == "" {
		return
	}
	ns := "--namespace=" + t.namespace
	if t.Failed() {
		objects, _ := t.kubectl(t.ctx, "describe", "conversations,usersettings,pods,persistentvolumeclaims", ns)
		_ = cluster.WritePrivate(filepath.Join(t.logs, "failed", t.namespace+".txt"), []byte(objects))
	}
	for _, command := range [][]string{
		{"delete", "conversations", "--all", ns},
		{"wait", "--for=delete", "pods", "--all", "--timeout=60s", ns},
		{"delete", "namespace", t.namespace, "--wait=false"},
	} {
		if _, err := t.kubectl(t.ctx, command...); err != nil {
			t.Errorf("clean up: %v", err)
		}
	}
}

func (t *t) settings(namespace string, change func(*v1alpha1.UserSettingsSpec)) {
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	if change != nil {
		change(&settings.Spec)
	}
	t.must(t.client.Create(t.ctx, settings))
}

func (t *t) addWriter() { t.addAgent(writer, writerEntry) }

func (t *t) addAgent(name, entry string) {
	patch := fmt.Sprintf(`{"data":{%q:%q}}`, name, entry)
	_, err := t.kubectl(t.ctx, "patch", "configmap", v1alpha1.AgentCatalogueName, "--namespace="+parleyNamespace,
		"--type=merge", "--patch="+patch)
	t.must(err)
}

func (t *t) conversation(namespace, name string, change func(*v1alpha1.ConversationSpec)) *v1alpha1.Conversation {
	c := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if change != nil {
		change(&c.Spec)
	}
	t.must(t.client.Create(t.ctx, c))
	return c
}

func (t *t) running(namespace, name string, change func(*v1alpha1.ConversationSpec)) *v1alpha1.Conversation {
	c := t.conversation(namespace, name, change)
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	return c
}

func (t *t) await(c *v1alpha1.Conversation, state v1alpha1.ConversationState, reason string) {
	t.retry(func(ctx context.Context) error {
		if err := t.client.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if c.Status.State != state || c.Status.Reason != reason {
			return fmt.Errorf("%s is %s, %s (%s), want %s, %s", c.Name, c.Status.State, c.Status.Reason, c.Status.Message,
				state, reason)
		}
		return nil
	})
}

// retry repeats a call until it succeeds or half of the check's time is over.
func (t *t) retry(call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.ctx, checkTimeout/2)
	defer cancel()
	t.must(retry(ctx, call))
}

func (t *t) edit(c *v1alpha1.Conversation, change func(*v1alpha1.ConversationSpec)) {
	before := c.DeepCopy()
	change(&c.Spec)
	t.must(t.client.Patch(t.ctx, c, client.MergeFrom(before)))
}

func podKey(c *v1alpha1.Conversation) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name)}
}

func (t *t) podOf(c *v1alpha1.Conversation) *corev1.Pod {
	pod := &corev1.Pod{}
	t.must(t.client.Get(t.ctx, podKey(c), pod))
	return pod
}

func (t *t) shell(c *v1alpha1.Conversation, line string) string {
	output, err := t.exec(t.ctx, c, line)
	t.must(err)
	return output
}

func (t *t) exec(ctx context.Context, c *v1alpha1.Conversation, line string) (string, error) {
	output, err := t.kubectl(ctx, "exec", "--namespace="+c.Namespace, v1alpha1.SessionName(c.Name), "--container=session",
		"--", "/bin/sh", "-c", line)
	return strings.TrimSpace(output), err
}

// sessionKey returns the key that the session's own HTTP endpoints require.
func (t *t) sessionKey(c *v1alpha1.Conversation) string {
	secret := &corev1.Secret{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name)}, secret))
	return string(secret.Data[session.KeyFile])
}

func useVolume(spec *v1alpha1.ConversationSpec) {
	spec.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
}

func (t *t) volumeOf(c *v1alpha1.Conversation) *corev1.PersistentVolume {
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-workspace"}, claim))
	t.must(t.client.Get(t.ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume))
	if volume.Spec.StorageClassName != storageClass || volume.Spec.Local == nil {
		t.Fatalf("the workspace is on the volume %+v", volume.Spec)
	}
	return volume
}

func (t *t) file(c *v1alpha1.Conversation, name string) string {
	content, err := os.ReadFile(filepath.Join(t.volumeOf(c).Spec.Local.Path, name))
	t.must(err)
	return strings.TrimSpace(string(content))
}

func secretValue() string { return "e2e-secret-" + rand.Text() }
