package v1alpha1_test

import (
	"os"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// keptSecrets are the names of every kind of Secret that is kept for an owner, by the owner's
// label.
func keptSecrets(owner string) map[string][]string {
	of := map[string][]string{
		v1alpha1.LabelUserSettings: {
			v1alpha1.KeptName(owner, "llm-api-key"), v1alpha1.KeptName(owner, "search-api-key"), v1alpha1.KeptName(owner,
				"sandbox-api-key"),
			v1alpha1.KeptName(owner, v1alpha1.KeptCustomSecret, "NAME"), v1alpha1.KeptName(owner, v1alpha1.KeptSettingsTool,
				"sse", "https://example.com"),
		},
		v1alpha1.LabelConversation: {v1alpha1.KeptName(owner, v1alpha1.KeptSessionTool, "env", "files", "TOKEN")},
	}
	for _, provider := range []v1alpha1.GitProvider{v1alpha1.GitHub, v1alpha1.GitLab, v1alpha1.Bitbucket,
		v1alpha1.EnterpriseSSO} {
		of[v1alpha1.LabelUserSettings] = append(of[v1alpha1.LabelUserSettings], v1alpha1.KeptName(owner, v1alpha1.KeptToken,
			string(provider)))
	}
	return of
}

func TestWhatIsKeptIsKnownByItsName(t *testing.T) {
	for label, names := range keptSecrets("ada") {
		for _, name := range names {
			if !v1alpha1.IsKeptSecretName(name, label, "ada") {
				t.Errorf("%s is not known as kept for %s", name, label)
			}
			for _, other := range []string{"bob", "", "ad"} {
				if v1alpha1.IsKeptSecretName(name, label, other) {
					t.Errorf("%s is taken for %q's", name, other)
				}
			}
		}
	}
	for _, name := range []string{"ada", "ada-", "ada-session-key", "ada-session", "ada-token-sourceforge",
		"ada-secret-NAME", "ada-llm-api-key-2"} {
		if v1alpha1.IsKeptSecretName(name, v1alpha1.LabelUserSettings, "ada") || v1alpha1.IsKeptSecretName(name,
			v1alpha1.LabelConversation, "ada") {
			t.Errorf("%s is taken for a kept one", name)
		}
	}
	for _, kept := range []v1alpha1.Kept{v1alpha1.KeptReplay, v1alpha1.KeptImage} {
		name := v1alpha1.KeptName("talk", kept, "[]") + "-abcdefgh23"
		if !v1alpha1.IsKeptConfigMapName(name, "talk") || v1alpha1.IsKeptConfigMapName(name, "walk") ||
			v1alpha1.IsKeptConfigMapName("talk-"+string(kept), "talk") {
			t.Errorf("what is kept in a ConfigMap as %s is not known by its name", kept)
		}
	}
}

func TestNoTwoOwnersShareASecret(t *testing.T) {
	endings := []string{"session", "session-key", "workspace"}
	for _, names := range keptSecrets("x") {
		for _, name := range names {
			endings = append(endings, strings.TrimPrefix(name, "x-"))
		}
	}
	for _, a := range endings {
		for _, b := range endings {
			if strings.HasSuffix(a, "-"+b) {
				t.Errorf("<x>-%s may be both one's %q and another's %q", a, a, b)
			}
		}
	}
}

func TestThePolicyKnowsWhatIsKept(t *testing.T) {
	policy, err := os.ReadFile(testenv.Path("config", "policy", "facade.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for label, form := range map[string]string{
		v1alpha1.LabelUserSettings: v1alpha1.KeptForSettingsForm,
		v1alpha1.LabelConversation: v1alpha1.KeptForConversationForm,
	} {
		if !strings.Contains(string(policy), "'"+label+"': '"+form+"'") {
			t.Errorf("the policy does not confine Secrets with %s to %s", label, form)
		}
	}
	if !strings.Contains(string(policy), "matches('"+v1alpha1.KeptConfigMapForm+"')") {
		t.Errorf("the policy does not confine ConfigMaps to %s", v1alpha1.KeptConfigMapForm)
	}
}
