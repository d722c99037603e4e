package webhook

import (
	"context"
	"iter"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// withoutWebhook is a namespace for which the configuration stands a second time, with a server
// that does not answer: what the API server has to ask about fails there.
func withoutWebhook(t *testing.T) string {
	t.Helper()
	namespace := env.Namespace(t, nil)
	webhook := conversationWebhook(t)
	webhook.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/down")}
	webhook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{
		"kubernetes.io/metadata.name": namespace}}
	down := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{webhook}}
	mustCreate(t, down)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), down) })
	eventually(t, func() (bool, error) {
		return isAsked(admin(t).Create(t.Context(), object(t, "Conversation", namespace, "maxDuration: 1h"),
			client.DryRunAll)), nil
	})
	return namespace
}

// conversationWebhook is the entry of the configuration that is about Conversations.
func conversationWebhook(t *testing.T) admissionregistrationv1.ValidatingWebhook {
	t.Helper()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	text, err := os.ReadFile(testenv.Path("config", "webhook", "manifests.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, configuration)
	}
	at := slices.IndexFunc(configuration.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
		return w.Name == "vconversation.parley.dev"
	})
	if err != nil || at < 0 {
		t.Fatalf("the configuration has no webhook for Conversations: %v", err)
	}
	return configuration.Webhooks[at]
}

func TestTheConfigurationHasTheCondition(t *testing.T) {
	if conversationWebhook(t).MatchConditions[0].Expression != MatchCondition() {
		t.Error("it has another one: run make manifests")
	}
}

// isAsked: the API server had to ask.
func isAsked(err error) bool {
	return err != nil && strings.Contains(err.Error(), "failed calling webhook")
}

// askedFields is every field of a Conversation's spec, and values with which the webhook is asked
// and with which it is not.
var askedFields = map[string]struct{ asked, skipped []string }{
	"userSettingsName": {skipped: []string{"default"}, asked: []string{"another"}},
	"repository": {
		skipped: []string{"owner/name", "group/sub.group/na-me_1"},
		asked: []string{"name", "./name", "owner/..", "owner/.name", "-o/name", "owner/-n", "a//b", "owner/name/",
			"https://example.com/a/b", "https://u:p@example.com/a", "'o/n '"},
	},
	"gitProvider": {skipped: []string{"github"}},
	"selectedBranch": {
		skipped: []string{"main", "feature/a-b.c_1"},
		asked:   []string{"'-a'", "a..b", "a.lock", "a.lock/b", "/a", "a/", "'a b'", "a~1", "'@'", "a/.b"},
	},
	"initialUserMsg": {skipped: []string{"hello"}},
	"imageURLs":      {asked: []string{"['https://example.com/a.png']", "[nowhere]"}},
	"images": {asked: []string{"[{url: 'https://example.com/a.png'}]",
		"[{configMapKeyRef: {name: a, key: k}, mediaType: image/png}]"}},
	"replayJSONRef": {asked: []string{"{name: a, key: k}"}},
	"suggestedTask": {skipped: []string{task("owner/name")}, asked: []string{task("https://example.com/a/b"),
		task("name")}},
	"createMicroagent":         {skipped: []string{"{repo: owner/name}"}, asked: []string{"{repo: name}"}},
	"conversationInstructions": {skipped: []string{"be brief"}},
	"oneShot":                  {skipped: []string{"false", "true"}},
	"mcpConfig": {asked: []string{"{sseServers: [{url: 'https://example.com'}]}",
		"{stdioServers: [{name: a, command: a}]}"}},
	"workspace":        {skipped: []string{"{size: 1Gi}"}},
	"sessionClassName": {skipped: []string{"default", "mine"}, asked: []string{"theirs"}},
	"suspend":          {skipped: []string{"true"}},
	"restartAt":        {skipped: []string{"'2026-01-01T00:00:00Z'"}},
	"idleTimeout":      {asked: []string{"1h"}},
	"startDeadline":    {asked: []string{"1h"}},
	"maxDuration":      {asked: []string{"1h"}},
	"ttlAfterStopped":  {asked: []string{"1h"}},
}

func task(repo string) string {
	return "{gitProvider: github, taskType: OPEN_ISSUE, repo: '" + repo + "', issueNumber: 1, title: t}"
}

// fieldsOf are the fields of a spec in the schema.
func fieldsOf(t *testing.T) []string {
	t.Helper()
	crd := &unstructured.Unstructured{}
	text, err := os.ReadFile(testenv.Path("config", "crd", "bases", "parley.dev_conversations.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &crd.Object)
	}
	if err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	fields, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec",
		"properties")
	return slices.Sorted(maps.Keys(fields))
}

func TestTheWebhookIsCalledOnlyWhereNeeded(t *testing.T) {
	namespace := withoutWebhook(t)
	jane := user(t, "jane-asked", namespace, use("default"))
	mayUse(t, "jane-asked", "mine")
	eventually(t, func() (bool, error) {
		return !isAsked(jane.Create(t.Context(), object(t, "Conversation", namespace, "sessionClassName: mine"),
			client.DryRunAll)), nil
	})
	if have := slices.Sorted(maps.Keys(askedFields)); !slices.Equal(have, fieldsOf(t)) {
		t.Fatalf("the table has %v, the schema %v", have, fieldsOf(t))
	}
	type one struct {
		field, spec string
		asked       bool
	}
	var all []one
	for field, values := range askedFields {
		for _, value := range values.asked {
			all = append(all, one{field, field + ": " + value, true})
		}
		for _, value := range values.skipped {
			all = append(all, one{field, field + ": " + value, false})
		}
	}
	check := func(t *testing.T, spec string, asked bool) {
		t.Helper()
		conversation := &v1alpha1.ConversationSpec{}
		if err := yaml.Unmarshal([]byte(spec), conversation); err != nil {
			t.Fatal(err)
		}
		asked = asked || len(ruleErrors(conversation)) > 0
		err := jane.Create(t.Context(), object(t, "Conversation", namespace, spec), client.DryRunAll)
		// What the schema refuses is refused before anybody is asked.
		if schema := err != nil && !isAsked(err); !schema && isAsked(err) != asked {
			t.Errorf("%s: asked: %v (%v), want %v", spec, isAsked(err), err, asked)
		}
	}
	for i, a := range all {
		t.Run(a.spec, func(t *testing.T) {
			t.Parallel()
			check(t, a.spec, a.asked)
			for _, b := range all[:i] {
				if a.field != b.field {
					check(t, a.spec+"\n"+b.spec, a.asked || b.asked)
				}
			}
		})
	}
}

// The webhook would accept every value that the condition does not send to it.
func TestValuesThatSkipTheWebhookAreValid(t *testing.T) {
	expression := conversationWebhook(t).MatchConditions[0].Expression
	for field, problem := range map[string]func(string) string{"repository": repositoryProblem,
		"selectedBranch": branchProblem} {
		pattern := regexp.MustCompile("object.spec." + field + `.matches\('(.*?)'\)`).FindStringSubmatch(expression)
		if pattern == nil {
			t.Fatalf("the condition has no pattern for %s", field)
		}
		good, passed := regexp.MustCompile(pattern[1]), 0
		for value := range words("aZ0_.-/~@: \n", 5) {
			for _, value := range []string{value, value + ".lock", value + ".lock/a"} {
				passes := good.MatchString(value) && (field != "selectedBranch" || !strings.Contains(value, ".lock"))
				if p := problem(value); passes && p != "" {
					t.Fatalf("%s %q passes: %s", field, value, p)
				} else if passes {
					passed++
				}
			}
		}
		if passed < 1000 {
			t.Errorf("%s: only %d values pass", field, passed)
		}
	}
}

// words are all of at most n letters.
func words(letters string, n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		var more func(string) bool
		more = func(word string) bool {
			if !yield(word) {
				return false
			}
			if len(word) == n {
				return true
			}
			for _, letter := range letters {
				if !more(word + string(letter)) {
					return false
				}
			}
			return true
		}
		more("")
	}
}

func TestWithoutTheWebhookPlainSessionsWork(t *testing.T) {
	namespace := withoutWebhook(t)
	owner := user(t, "owner-asked", namespace, use("default"))
	stranger := user(t, "stranger-asked", namespace)
	if err := stranger.create(t, object(t, "Conversation", namespace, "{}")); !isAsked(err) {
		t.Errorf("without a right to use the settings: %v", err)
	}
	plain := object(t, "Conversation", namespace, "{repository: owner/name, initialUserMsg: hello}")
	expectAccepted(t, owner.create(t, plain))
	tools := object(t, "Conversation", namespace, "mcpConfig: {stdioServers: [{name: a, command: a}]}")
	expectMade(t, tools)
	set := func(field string, value any) func(*unstructured.Unstructured) {
		return setField(t, value, "spec", field)
	}
	for i, step := range []struct {
		who    *person
		of     *unstructured.Unstructured
		change func(*unstructured.Unstructured)
		asked  bool
	}{
		{stranger, plain, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) }, false},
		{stranger, plain, set("suspend", true), false},
		{stranger, plain, set("suspend", false), true},
		{stranger, plain, func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "spec", "suspend") },
			true},
		{owner, plain, set("suspend", false), false},
		{stranger, plain, set("restartAt", "2026-01-01T00:00:00Z"), true},
		{owner, plain, set("restartAt", "2026-01-01T00:00:00Z"), false},
		{stranger, plain, func(o *unstructured.Unstructured) {
			unstructured.RemoveNestedField(o.Object, "spec",
				"restartAt")
		}, true},
		{owner, plain, set("idleTimeout", "1h"), true},
		{owner, plain, set("startDeadline", "1h"), true},
		{owner, plain, set("maxDuration", "1h"), true},
		{owner, plain, set("ttlAfterStopped", "1h"), true},
		{owner, tools, set("suspend", true), false},
		{owner, tools, set("suspend", false), true},
		{owner, tools, set("restartAt", "2026-01-01T00:00:00Z"), true},
	} {
		err := step.who.change(t, step.of, step.change)
		if isAsked(err) != step.asked || err != nil && !step.asked {
			t.Errorf("step %d: %v, want it asked: %v", i, err, step.asked)
		}
	}
}

// expectMade makes a Conversation that the webhook would be asked about, as if it had been made
// while the webhook answered.
func expectMade(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	namespace := o.GetNamespace()
	down := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, down); err != nil {
		t.Fatal(err)
	}
	before := down.DeepCopy()
	down.Webhooks[0].FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	if err := env.Client.Update(t.Context(), down); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (bool, error) { return !isAsked(admin(t).Create(t.Context(), o)), nil })
	before.ResourceVersion = down.ResourceVersion
	if err := env.Client.Update(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (bool, error) {
		return isAsked(admin(t).Create(t.Context(), object(t, "Conversation", namespace, "maxDuration: 1h"),
			client.DryRunAll)), nil
	})
}
