package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// classAddress is an address of the node. The class of the warm pods allows connections to it.
const classAddress = "10.99.0.2"

// warmPodIsolated starts a session with secrets in a warm pod. The other warm pods of the class
// must hold none of the secrets, and must reach only the allowed addresses.
func warmPodIsolated(t *t) {
	u := t.newUser()
	const class = "warm"
	defer t.makeClass(class, func(spec *v1alpha1.SessionClassSpec) {
		spec.Images.Runtime = v1alpha1.RuntimeMount
		spec.Network = &v1alpha1.SessionNetwork{EgressAllow: []string{classAddress + "/32"}}
		spec.Warm = &v1alpha1.WarmPods{Size: 1, NamespaceSelector: ofNamespace(u.namespace)}
	})()
	first := t.warmPod(class, "")
	c := t.startInClass(u, class)
	if c.Status.PodName != first.Name {
		t.Fatalf("the session runs in %s, want the warm pod %s", c.Status.PodName, first.Name)
	}
	if text := environments(first.UID); !strings.Contains(text, "PARLEY") && !strings.Contains(text, "PATH") {
		t.Error("the environments of processes cannot be read, so this check proves nothing")
	}
	next := t.warmPod(class, first.UID)
	t.expectOnlyAKey(u, next)
	t.look(u, "the environments of a warm pod", environments(next.UID))
	t.expectNoFileWith(u, next)
	t.expectHiddenKey(first)
	t.expectReach(next, c)
	_, err := t.execIn(t.ctx, first, "touch finish")
	t.must(err)
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
}

// warmPod returns a ready warm pod of a class. It never returns the pod whose UID is given.
func (t *t) warmPod(class string, other types.UID) (found *corev1.Pod) {
	t.retry(func(ctx context.Context) error {
		pods, err := t.warmPods(ctx, class)
		if err != nil {
			return err
		}
		for i := range pods {
			if isReady(&pods[i]) && pods[i].UID != other {
				found = &pods[i]
				return nil
			}
		}
		return fmt.Errorf("none of %d warm pods is ready", len(pods))
	})
	return found
}

func (t *t) startInClass(u *user, class string) *v1alpha1.Conversation {
	t.addWriter()
	llm, custom := secretValue(), secretValue()
	u.secrets = []string{llm, custom, u.key}
	t.post(u, "/api/settings", rest.Settings{
		Agent: rest.Set(writer), LLMModel: rest.Set("example/model"), LLMAPIKey: rest.NewKey(llm),
		SecretsStore: rest.Set(rest.UserSecrets{CustomSecrets: map[string]*rest.CustomSecret{
			"CUSTOM": {Secret: rest.NewKey(custom)}}}),
	}, &rest.Stored{})
	message := "Write this down."
	c := t.running(u.namespace, "warm", func(spec *v1alpha1.ConversationSpec) {
		spec.SessionClassName, spec.InitialUserMsg = &class, &message
	})
	u.secrets = append(u.secrets, t.sessionKey(c))
	return c
}

// expectOnlyAKey checks that a warm pod uses exactly one Secret, which contains only a bind key.
func (t *t) expectOnlyAKey(u *user, pod *corev1.Pod) {
	secret := &corev1.Secret{}
	t.must(t.client.Get(t.ctx, client.ObjectKeyFromObject(pod), secret))
	if len(secret.Data) != 1 || len(secret.Data[session.BindKeyFile]) == 0 || secret.Type != v1alpha1.SecretTypeWarm {
		t.Errorf("the Secret of a warm pod has the type %s and %d keys", secret.Type, len(secret.Data))
	}
	if owner := metav1.GetControllerOfNoCopy(secret); len(secret.OwnerReferences) != 1 ||
		secret.OwnerReferences[0].UID != pod.UID {
		t.Errorf("the Secret of a warm pod has the owner %v", owner)
	}
	text, err := pod.Marshal()
	t.must(err)
	t.look(u, "the warm pod", string(text))
	for _, container := range pod.Spec.Containers {
		for _, variable := range container.Env {
			if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil && from.SecretKeyRef.Name != pod.Name {
				t.Errorf("the variable %s of a warm pod comes from the Secret %s", variable.Name, from.SecretKeyRef.Name)
			}
		}
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret != nil && volume.Secret.SecretName != pod.Name || volume.Projected != nil ||
			volume.ConfigMap != nil {
			t.Errorf("a warm pod has the volume %s", volume.Name)
		}
	}
}

func environments(uid types.UID) string {
	var all strings.Builder
	for _, pid := range processesOfPod(uid) {
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		all.Write(content)
	}
	return all.String()
}

func (t *t) expectNoFileWith(u *user, pod *corev1.Pod) {
	output, err := t.execIn(t.ctx, pod, "grep -Frls -e "+strings.Join(u.secrets, " -e ")+
		" /workspace /tmp /run /var /home /etc /root; true")
	t.must(err)
	if output != "" {
		t.Errorf("a secret is in these files of a warm pod: %s", output)
	}
}

// expectHiddenKey checks that the environments of the agent's processes do not contain the bind key
// of the pod.
func (t *t) expectHiddenKey(pod *corev1.Pod) {
	secret := &corev1.Secret{}
	t.must(t.client.Get(t.ctx, client.ObjectKeyFromObject(pod), secret))
	key := string(secret.Data[session.BindKeyFile])
	raw, _ := base64.StdEncoding.DecodeString(key)
	for _, pid := range processesOfPod(pod.UID) {
		program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if name := filepath.Base(program); name == "supervisor" || name == "runtime" {
			continue
		}
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if strings.Contains(string(content), key) || len(raw) > 0 && strings.Contains(string(content), string(raw)) {
			t.Errorf("the process %s has the bind key of its pod", program)
		}
	}
}

func (t *t) execIn(ctx context.Context, pod *corev1.Pod, line string) (string, error) {
	output, err := t.kubectl(ctx, "exec", "--namespace="+pod.Namespace, pod.Name, "--container=session", "--", "/bin/sh",
		"-c", line)
	return strings.TrimSpace(output), err
}

func (t *t) expectReach(pod *corev1.Pod, other *v1alpha1.Conversation) {
	output, err := exec.Command("ip", "address", "add", classAddress+"/32", "dev", "lo").CombinedOutput()
	if err != nil {
		t.Fatalf("add an address: %v: %s", err, output)
	}
	defer func() { _ = exec.Command("ip", "address", "del", classAddress+"/32", "dev", "lo").Run() }()
	apiServer, err := url.Parse(t.plane.URL())
	t.must(err)
	targets := map[string]string{
		"the API server":              apiServer.Host,
		"the node":                    t.listen(nodeAddress),
		"another session":             fmt.Sprintf("%s:%d", other.Status.PodIP, session.Port),
		"the facade":                  t.addressOf("facade", 3000),
		"the manager's webhook":       t.addressOf("manager", 9443),
		"an address that is allowed":  t.listen(classAddress),
		"the archive, for its upload": t.addressOf("archive", 3001),
	}
	allowed := map[string]bool{"an address that is allowed": true, "the archive, for its upload": true}
	reached := t.reachableFrom(pod, targets)
	for name, address := range targets {
		if !reached[name] {
			t.Errorf("without policies, %s at %s is not reachable, so this check proves nothing", name, address)
		}
	}
	t.enforcePolicies(pod)
	reached = t.reachableFrom(pod, targets)
	for name, address := range targets {
		if reached[name] != allowed[name] {
			t.Errorf("a warm pod reaches %s at %s: %t, want %t", name, address, reached[name], allowed[name])
		}
	}
}

func (t *t) listen(address string) string {
	listener, err := net.Listen("tcp", address+":0")
	t.must(err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
	return listener.Addr().String()
}

func (t *t) addressOf(component string, port int) string {
	pods := &corev1.PodList{}
	t.must(t.client.List(t.ctx, pods, client.InNamespace(parleyNamespace),
		client.MatchingLabels{v1alpha1.LabelComponent: component}))
	for i := range pods.Items {
		if isReady(&pods.Items[i]) {
			return fmt.Sprintf("%s:%d", pods.Items[i].Status.PodIP, port)
		}
	}
	t.must(errors.New("no pod of the component " + component + " is ready"))
	return ""
}

// reachableFrom returns the names of the targets to which a process in the pod can connect.
func (t *t) reachableFrom(pod *corev1.Pod, targets map[string]string) map[string]bool {
	var script strings.Builder
	for name, address := range targets {
		host, port, _ := net.SplitHostPort(address)
		fmt.Fprintf(&script, "(timeout 1 bash -c 'exec 3<>/dev/tcp/%s/%s' 2>/dev/null && echo %q) & ", host, port, name)
	}
	output, err := t.execIn(t.ctx, pod, script.String()+"wait; true")
	t.must(err)
	reached := map[string]bool{}
	for line := range strings.Lines(output) {
		reached[strings.TrimSpace(line)] = true
	}
	return reached
}
