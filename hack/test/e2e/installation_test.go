package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// upgrade installs another version of Parley's container image while a session runs and clients
// send requests.
func upgrade(t *t) {
	u := t.newUser()
	c := t.running(u.namespace, "before", nil)
	before := t.takeSnapshot(c)
	calls, writes := t.repeat(t.readAction(u)), t.repeat(t.writeAction(u))
	t.must(t.applyInstaller(nextImage))
	t.must(t.awaitParley(t.ctx))
	t.expectNoneFailed("requests to the facade", calls)
	t.expectNoneFailed("writes that the webhook checks", writes)
	t.expectImage(nextImage)
	t.expectUntouched(c, before)
	after := t.running(u.namespace, "after", nil)
	if got := t.podOf(after).Spec.InitContainers[0].Image; got != nextImage {
		t.Errorf("a session that started after the upgrade got its runtime from %s", got)
	}
}

func (n *inside) applyInstaller(image string) error {
	content, err := os.ReadFile(filepath.Join(n.dist, "install.yaml"))
	if err != nil {
		return err
	}
	file := filepath.Join(runDir, "install-next.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(content), parleyImage, image)), 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	_, err = n.kubectl(ctx, "apply", "--server-side", "--filename="+file)
	return err
}

type snapshot struct {
	conversation *v1alpha1.Conversation
	pod          *corev1.Pod
}

func (t *t) takeSnapshot(c *v1alpha1.Conversation) snapshot {
	t.must(t.client.Get(t.ctx, client.ObjectKeyFromObject(c), c))
	return snapshot{c.DeepCopy(), t.podOf(c)}
}

// expectUntouched checks that the session still runs in the same pod, and that its Conversation was
// not written.
func (t *t) expectUntouched(c *v1alpha1.Conversation, before snapshot) {
	now := t.takeSnapshot(c)
	if now.pod.UID != before.pod.UID || now.pod.Status.ContainerStatuses[0].RestartCount != 0 ||
		now.pod.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod of the session was %s and is %s, restarted %d times", before.pod.UID, now.pod.UID,
			now.pod.Status.ContainerStatuses[0].RestartCount)
	}
	if now.conversation.Status.State != v1alpha1.StateRunning ||
		now.conversation.ResourceVersion != before.conversation.ResourceVersion {
		t.Errorf("the Conversation was written: it is %s, %s", now.conversation.Status.State, now.conversation.Status.Reason)
	}
}

func (t *t) expectImage(image string) {
	for _, name := range []string{"parley-manager", "parley-facade"} {
		deployment := &appsv1.Deployment{}
		t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: parleyNamespace, Name: name}, deployment))
		if got := deployment.Spec.Template.Spec.Containers[0].Image; got != image || deployment.Status.UpdatedReplicas != 2 {
			t.Errorf("%s runs %s in %d pods, want %s in 2", name, got, deployment.Status.UpdatedReplicas, image)
		}
	}
}

type outcome struct {
	made   int
	failed []string
}

// repeat repeats an action in the background. The returned function ends the repetition and returns
// the outcome.
func (t *t) repeat(act func(context.Context) error) func() outcome {
	ctx, stop := context.WithCancel(t.ctx)
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		for ctx.Err() == nil {
			o.made++
			if err := act(t.ctx); err != nil {
				o.failed = append(o.failed, err.Error())
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		done <- o
	}()
	return func() outcome {
		stop()
		return <-done
	}
}

func (t *t) expectNoneFailed(what string, end func() outcome) {
	o := end()
	t.Logf("%d %s during the upgrade, %d of them failed", o.made, what, len(o.failed))
	if len(o.failed) > 0 {
		t.Errorf("%s failed: %s", what, strings.Join(o.failed, "; "))
	}
}

// readAction returns an action that reads a conversation from the facade. Each call opens a new
// connection.
func (t *t) readAction(u *user) func(context.Context) error {
	url := t.facadeURL() + "/api/conversations/before"
	connection := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	return func(context.Context) error {
		request, err := http.NewRequest(http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		request.Header.Set(rest.KeyHeader, u.key)
		response, err := connection.Do(request)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}
}

// writeAction returns an action that sends a dry-run write, which the webhook must check.
func (t *t) writeAction(u *user) func(context.Context) error {
	return func(ctx context.Context) error {
		err := t.client.Create(ctx, &v1alpha1.UserSettings{
			ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: "asked"},
			Spec:       v1alpha1.UserSettingsSpec{Agent: ptr.To("CodeActAgent")},
		}, client.DryRunAll)
		if err != nil {
			return fmt.Errorf("%w; managers logged %q", err, t.managersLogged("Cannot check"))
		}
		return nil
	}
}

// managersLogged returns the matching lines in the managers' logs. Call it immediately after an
// error, because the log of a replaced pod is soon deleted.
func (t *t) managersLogged(words string) (lines []string) {
	files, _ := filepath.Glob(filepath.Join(t.logs, "pods", parleyNamespace+"_parley-manager-*", "*", "*.log"))
	for _, file := range files {
		content, _ := os.ReadFile(file)
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, words) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func removal(t *t) {
	u := t.newUser()
	c := t.running(u.namespace, "kept", nil)
	before := t.takeSnapshot(c)
	t.must(t.uninstallParley(t.ctx))
	t.expectNothingLeft()
	if err := t.client.Get(t.ctx, client.ObjectKey{Name: parleyNamespace}, &corev1.Namespace{}); !apierrors.IsNotFound(
		err) {
		t.Errorf("the namespace still exists: %v", err)
	}
	t.expectUntouched(c, before)
	settings := &v1alpha1.UserSettings{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: u.namespace, Name: "default"}, settings))
}

func (t *t) expectNothingLeft() {
	t.retry(func(ctx context.Context) error {
		left, err := t.left(ctx)
		if err == nil && len(left) > 0 {
			err = errors.New("still there: " + strings.Join(left, ", "))
		}
		return err
	})
}

func (t *t) left(ctx context.Context) ([]string, error) {
	var left []string
	for _, where := range []struct {
		namespaced string
		selected   []string
		isOurs     func(kind, name string) bool
	}{
		{"false", nil, func(kind, name string) bool {
			// An uninstall keeps the CRDs and their APIService. The namespace may stay too, because
			// Helm does not delete it.
			staysInPlace := kind == "customresourcedefinition" || kind == "apiservice" || kind == "namespace" &&
				name == parleyNamespace
			return strings.Contains(name, "parley") && !staysInPlace
		}},
		{"true", []string{"--all-namespaces", "--selector=" + part}, func(string, string) bool { return true }},
		{"true", []string{"--namespace=" + parleyNamespace}, func(kind, name string) bool { return !mayStay(kind, name) }},
	} {
		kinds, err := t.kubectl(ctx, "api-resources", "--verbs=list", "--namespaced="+where.namespaced, "--output=name")
		if err != nil {
			return nil, err
		}
		all := strings.Join(strings.Fields(kinds), ",")
		found, err := t.kubectl(ctx, append([]string{"get", all, "--output=name"}, where.selected...)...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(found) {
			kind, name, isObject := strings.Cut(strings.TrimSpace(line), "/")
			kind, _, _ = strings.Cut(kind, ".")
			if isObject && !strings.Contains(line, " ") && where.isOurs(kind, name) { // otherwise the line is a warning
				left = append(left, kind+"/"+name)
			}
		}
	}
	return left, nil
}

// mayStay reports whether an object may stay in Parley's namespace after an uninstall. The cluster
// creates the ConfigMap and the ServiceAccount in every namespace. Events and Leases expire.
func mayStay(kind, name string) bool {
	return kind == "configmap" && name == "kube-root-ca.crt" || kind == "serviceaccount" && name == "default" ||
		kind == "event" || kind == "lease"
}

func (n *inside) helm(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(n.binDir, "helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+n.adminKubeconfig(), "HOME="+runDir)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, output)
	}
	return nil
}

func (n *inside) release(image string) []string {
	repository, tag, _ := strings.Cut(image, ":")
	return []string{
		"parley", n.chart, "--namespace=" + parleyNamespace, "--set=image.repository=" + repository, "--set=image.tag=" + tag,
		"--wait", "--timeout=3m",
	}
}

func helmChart(t *t) {
	// Helm refuses to overwrite objects that it did not create. Delete all of Parley's objects
	// first, including users' objects.
	t.must(t.uninstallParley(t.ctx))
	_, err := t.kubectl(t.ctx, "delete", "crd", "conversations.parley.dev", "usersettings.parley.dev",
		"sessionclasses.parley.dev")
	t.must(err)
	t.must(t.helm(t.ctx, append([]string{"install", "--create-namespace"}, t.release(parleyImage)...)...))
	t.expectImage(parleyImage)
	t.must(t.makeClasses(t.ctx)) // the release created the default class
	u := t.newUser()
	c, _ := t.startOverHTTP(u, "flow")
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	before := t.takeSnapshot(c)
	t.must(t.helm(t.ctx, append([]string{"upgrade"}, t.release(nextImage)...)...))
	t.expectImage(nextImage)
	t.expectUntouched(c, before)
	t.must(t.helm(t.ctx, "uninstall", "parley", "--namespace="+parleyNamespace, "--wait"))
	// An uninstall keeps the archive's volume claim.
	_, err = t.kubectl(t.ctx, "delete", "persistentvolumeclaim", archiveName, "--namespace="+parleyNamespace)
	t.must(err)
	t.expectNothingLeft()
	t.expectUntouched(c, before)
}
