package v1alpha1_test

import (
	"os"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// managedSecrets returns the names of all Secrets that Parley manages for an owner with this name.
// The map's keys are the labels for the two kinds of owners.
func managedSecrets(owner string) map[string][]string {
	of := map[string][]string{
		v1alpha1.LabelUserSettings: {
			v1alpha1.ManagedName(owner, v1alpha1.ManagedLLMKey),
			v1alpha1.ManagedName(owner, v1alpha1.ManagedLLMKey, "https://example.com"),
			v1alpha1.ManagedName(owner, "search-api-key"),
			v1alpha1.ManagedName(owner, "sandbox-api-key"),
			v1alpha1.ManagedName(owner, v1alpha1.ManagedCustomSecret, "NAME"),
			v1alpha1.ManagedName(owner, v1alpha1.ManagedSettingsTool, "sse", "https://example.com"),
		},
		v1alpha1.LabelConversation: {v1alpha1.ManagedName(owner, v1alpha1.ManagedSessionTool, "env", "files", "TOKEN")},
	}
	for _, provider := range []v1alpha1.GitProvider{v1alpha1.GitHub, v1alpha1.GitLab, v1alpha1.Bitbucket,
		v1alpha1.EnterpriseSSO} {
		name := v1alpha1.ManagedName(owner, v1alpha1.ManagedToken, string(provider))
		of[v1alpha1.LabelUserSettings] = append(of[v1alpha1.LabelUserSettings], name)
	}
	return of
}

func TestManagedObjectsAreRecognizedByName(t *testing.T) {
	for label, names := range managedSecrets("ada") {
		for _, name := range names {
			if !v1alpha1.IsManagedSecretName(name, label, "ada") {
				t.Errorf("%s is not recognised as managed for %s", name, label)
			}
			for _, other := range []string{"bob", "", "ad"} {
				if v1alpha1.IsManagedSecretName(name, label, other) {
					t.Errorf("%s is recognised as managed for %q", name, other)
				}
			}
		}
	}
	for _, name := range []string{"ada", "ada-", "ada-session-key", "ada-session", "ada-token-sourceforge",
		"ada-secret-NAME", "ada-llm-api-key-2"} {
		if v1alpha1.IsManagedSecretName(name, v1alpha1.LabelUserSettings, "ada") || v1alpha1.IsManagedSecretName(name,
			v1alpha1.LabelConversation, "ada") {
			t.Errorf("%s is recognised as managed", name)
		}
	}
	for _, kind := range []v1alpha1.ManagedKind{v1alpha1.ManagedReplay, v1alpha1.ManagedImage} {
		name := v1alpha1.ManagedName("talk", kind, "[]") + "-abcdefgh23"
		if !v1alpha1.IsManagedConfigMapName(name, "talk") || v1alpha1.IsManagedConfigMapName(name, "walk") ||
			v1alpha1.IsManagedConfigMapName("talk-"+string(kind), "talk") {
			t.Errorf("the name of the managed ConfigMap of a %s is not recognised", kind)
		}
	}
}

func TestSecretsOfTwoOwnersNeverShareAName(t *testing.T) {
	endings := []string{"session", "session-key", "workspace"}
	for _, names := range managedSecrets("x") {
		for _, name := range names {
			endings = append(endings, strings.TrimPrefix(name, "x-"))
		}
	}
	for _, a := range endings {
		for _, b := range endings {
			if strings.HasSuffix(a, "-"+b) {
				t.Errorf("<x>-%s may be the %q of one owner and the %q of another", a, a, b)
			}
		}
	}
}

func TestTheFacadePolicyContainsTheSuffixesOfManagedNames(t *testing.T) {
	policy, err := os.ReadFile(testenv.Path("config", "policy", "facade.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for label, form := range map[string]string{
		v1alpha1.LabelUserSettings: v1alpha1.ManagedSettingsSecretSuffix,
		v1alpha1.LabelConversation: v1alpha1.ManagedConversationSecretSuffix,
	} {
		if !strings.Contains(string(policy), "'"+label+"': '"+form+"'") {
			t.Errorf("the policy does not restrict Secrets with %s to %s", label, form)
		}
	}
	if !strings.Contains(string(policy), "matches('"+v1alpha1.ManagedConfigMapSuffix+"')") {
		t.Errorf("the policy does not restrict ConfigMaps to %s", v1alpha1.ManagedConfigMapSuffix)
	}
}
