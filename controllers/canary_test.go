package controllers

import (
	"crypto/rand"
	"encoding/base64"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestSecretValuesAppearOnlyInSecrets(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	canaries := map[string]string{}
	plant := func(name string) {
		canaries[name] = "canary-" + rand.Text() + rand.Text()
		create(t, secretWith(ns, name, canaries[name]))
	}
	settings := userSettings(ns, "ada")
	settings.Spec = everySecret()
	settings.Spec.SessionKeyRef = ref("session")
	conv := makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Repository, s.GitProvider = ptr.To("o/r"), ptr.To(v1alpha1.GitHub)
	}).Obj()
	own := makeConversation(ns, "own").With(func(s *v1alpha1.ConversationSpec) {
		s.MCPConfig = &v1alpha1.MCPConfig{SHTTPServers: []v1alpha1.MCPRemoteServer{{URL: "https://example.com",
			APIKeyRef: ref("own-mcp")}}}
	}).Obj()
	create(t, settings, conv, own)
	for _, name := range []string{"llm", "search", "sandbox", "github", "gitlab", "npm", "sse", "shttp", "stdio",
		"own-mcp", "session"} {
		plant(name)
	}
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	sessionSecret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "c-session"}, sessionSecret); err != nil {
		t.Fatal(err)
	}
	if string(sessionSecret.Data[session.LLMAPIKeyFile]) != canaries["llm"] {
		t.Fatal("the session does not get its key, so this test proves nothing")
	}
	canaries["the session's own key"] = string(sessionSecret.Data[session.KeyFile])
	// A key in the termination message must not reach the status.
	k.end("the key was " + canaries["llm"])
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	kubelet{t, ns, "own"}.start()
	awaitState(t, ns, "own", v1alpha1.StateRunning, v1alpha1.ReasonRunning)

	text := logs.String()
	places := map[string]string{"the logs": text, "a dump in the logs": dumped(text)}
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		places["metric "+f.GetName()] = f.String()
	}
	everythingIn(t, ns, places)
	for _, must := range []string{"conversations/c", "usersettings/ada", "pods/own-session"} {
		if places[must] == "" {
			t.Fatalf("%s was not checked", must)
		}
	}
	for place, text := range places {
		for name, canary := range canaries {
			// The call of k.end put this key into the status of the session's own pod.
			if place == "pods/c-session" && name == "llm" {
				continue
			}
			if strings.Contains(text, canary) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(canary))) {
				t.Errorf("the value of %s is in %s", name, place)
			}
		}
	}
}

// dumpColumn is the text column of a hexadecimal dump, in which client-go logs binary data.
var dumpColumn = regexp.MustCompile(`\|([^|]{1,16})\|`)

func dumped(text string) string {
	var all strings.Builder
	for _, column := range dumpColumn.FindAllStringSubmatch(text, -1) {
		all.WriteString(column[1])
	}
	return all.String()
}

// everythingIn collects all objects of a namespace, of every kind except Secrets.
func everythingIn(t *testing.T, namespace string, places map[string]string) {
	t.Helper()
	disco, err := discovery.NewDiscoveryClientForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := disco.ServerPreferredNamespacedResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range resources {
		for _, r := range group.APIResources {
			if r.Kind == "Secret" || !strings.Contains(r.Verbs.String(), "list") {
				continue
			}
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(group.GroupVersion)
			list.SetKind(r.Kind + "List")
			if err := env.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
				t.Fatalf("list %s: %v", r.Name, err)
			}
			for i := range list.Items {
				text, err := list.Items[i].MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				places[r.Name+"/"+list.Items[i].GetName()] = string(text)
			}
		}
	}
}
