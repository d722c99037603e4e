package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// secretsStayHidden searches everything that users without access to Secrets can read. None of it
// may contain a secret of the session. The agent prints its whole environment, so the pod's logs
// contain the environment, too.
func secretsStayHidden(t *t) {
	u := t.newUser()
	c, _ := t.startOverHTTP(u, "hidden")
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	u.secrets = append(u.secrets, u.key, t.sessionKey(c))
	t.callTool(c) // so that the tool server gets its key, too
	t.look(u, "the process list", processList())
	ns := "--namespace=" + u.namespace
	for _, command := range [][]string{
		{"describe", "pods,conversations,usersettings,secrets,configmaps,events", ns},
		{"get", "pods,conversations,usersettings,configmaps,events", "--output=yaml", ns},
		{"logs", v1alpha1.SessionName(c.Name), "--all-containers", ns},
	} {
		output, err := t.kubectl(t.ctx, command...)
		t.must(err)
		t.look(u, "kubectl "+command[0], output)
		if command[0] == "logs" && !strings.Contains(output, "CUSTOM=") {
			t.Errorf("the agent did not print its environment, so this check proves nothing:\n%s", output)
		}
	}
	t.lookInLogs(u)
	t.shell(c, "touch widgets/finish")
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
}

// imageVariables runs a session in an image with hostile variables. The session must send its key
// only to the model.
func imageVariables(t *t) {
	ns := t.newNamespace()
	u := &user{namespace: ns, secrets: []string{secretValue()}}
	var diverted atomic.Int32
	listener, err := net.Listen("tcp", thiefAddress)
	t.must(err)
	thief := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			diverted.Add(1)
			w.WriteHeader(http.StatusBadGateway)
		})}}
	thief.Start()
	t.Cleanup(thief.Close)
	model, baseURL := t.scriptedModel(scriptedmodel.Step{Text: "Hello."})
	t.must(t.client.Create(t.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "model"},
		StringData: map[string]string{"key": u.secrets[0]}}))
	t.settings(ns, func(s *v1alpha1.UserSettingsSpec) {
		s.SandboxBaseContainerImage, s.LLMModel, s.LLMBaseURL = ptr.To(thiefImage), ptr.To("scripted/model"), &baseURL
		s.LLMAPIKeyRef = &v1alpha1.SecretKeyRef{Name: "model", Key: "key"}
	})
	t.running(ns, "diverted", func(spec *v1alpha1.ConversationSpec) {
		spec.InitialUserMsg = ptr.To("Say hello.")
	})
	t.retry(func(context.Context) error {
		if model.Remaining() > 0 {
			return errors.New("the model was not asked")
		}
		return nil
	})
	if got := diverted.Load(); got > 0 {
		t.Errorf("the image's proxy received %d requests", got)
	}
	t.lookInLogs(u)
}

func (t *t) look(u *user, where, text string) {
	for i, value := range u.secrets {
		if strings.Contains(text, value) {
			t.Errorf("secret %d of %d is in %s", i+1, len(u.secrets), where)
		}
	}
}

func (t *t) lookInLogs(u *user) {
	t.must(filepath.WalkDir(t.logs, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		t.look(u, path, string(content))
		return err
	}))
}

func processList() string {
	var list bytes.Buffer
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		fmt.Fprintf(&list, "%s\n", content)
	}
	return list.String()
}

func restrictedNamespace(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "restricted", nil)
	if got := t.shell(c,
		"id -u; grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status | tr -s '\\t' ' '"); got != "1000\nCapEff: "+
		"0000000000000000\nNoNewPrivs: 1\nSeccomp: 2" {
		t.Errorf("a session's process has %q", got)
	}
	err := t.client.Create(t.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "privileged"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: pauseImage, SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
		}}},
	})
	if !apierrors.IsForbidden(err) {
		t.Errorf("creating a privileged pod returned %v", err)
	}
}

func noToken(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "tokenless", nil)
	for _, v := range t.podOf(c).Spec.Volumes {
		if v.Projected != nil {
			t.Errorf("the pod has the projected volume %s", v.Name)
		}
	}
	if got := t.shell(c,
		"find / -xdev -name token -type f 2>/dev/null; ls -A /var/run/secrets 2>/dev/null; true"); got != "" {
		t.Errorf("the session contains %q", got)
	}
}

func networkObjects(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	t.running(ns, "networked", nil)
	policy, service := &networkingv1.NetworkPolicy{}, &corev1.Service{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: ns, Name: "parley-sessions-default"}, policy))
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: ns, Name: "sessions"}, service))
	if len(policy.Spec.PolicyTypes) != 2 || len(policy.Spec.Ingress) == 0 || len(policy.Spec.Egress) == 0 {
		t.Errorf("the policy is %+v", policy.Spec)
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the service is %+v", service.Spec)
	}
	t.Logf("the objects exist; this node's network plugin does not enforce policies")
}
