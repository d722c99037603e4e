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

// brokenWebhook returns a namespace with a copy of the Conversation webhook that does not answer.
// In this namespace, the API server refuses each request for which it calls the webhook.
func brokenWebhook(t *testing.T) string {
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
		return isCalled(admin(t).Create(t.Context(), object(t, "Conversation", namespace, "maxDuration: 1h"),
			client.DryRunAll)), nil
	})
	return namespace
}

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

func TestTheConfigurationContainsTheMatchCondition(t *testing.T) {
	if conversationWebhook(t).MatchConditions[0].Expression != MatchCondition() {
		t.Error("the match condition is outdated: run make manifests")
	}
}

// isCalled reports whether the API server called the webhook for the request that returned err. If
// the webhook does not answer or refuses the request, the error contains its name. The copy from
// brokenWebhook has the same name.
func isCalled(err error) bool {
	return err != nil && strings.Contains(err.Error(), `webhook "vconversation.parley.dev"`)
}

// webhookFields contains every field of a Conversation's spec, with values that need the webhook
// and values that skip it.
var webhookFields = map[string]struct{ called, skipped []string }{
	"userSettingsName": {skipped: []string{"default"}, called: []string{"another"}},
	"repository": {
		skipped: []string{"owner/name", "group/sub.group/na-me_1"},
		called: []string{"name", "./name", "owner/..", "owner/.name", "-o/name", "owner/-n", "a//b", "owner/name/",
			"https://example.com/a/b", "https://u:p@example.com/a", "'o/n '"},
	},
	"gitProvider": {skipped: []string{"github"}},
	"selectedBranch": {
		skipped: []string{"main", "feature/a-b.c_1"},
		called:  []string{"'-a'", "a..b", "a.lock", "a.lock/b", "/a", "a/", "'a b'", "a~1", "'@'", "a/.b"},
	},
	"initialUserMsg": {skipped: []string{"hello"}},
	"imageURLs":      {called: []string{"['https://example.com/a.png']", "[nowhere]"}},
	"images": {called: []string{"[{url: 'https://example.com/a.png'}]",
		"[{configMapKeyRef: {name: a, key: k}, mediaType: image/png}]"}},
	"replayJSONRef": {called: []string{"{name: a, key: k}"}},
	"suggestedTask": {skipped: []string{task("owner/name")}, called: []string{task("https://example.com/a/b"),
		task("name")}},
	"createMicroagent":         {skipped: []string{"{repo: owner/name}"}, called: []string{"{repo: name}"}},
	"conversationInstructions": {skipped: []string{"be brief"}},
	"oneShot":                  {skipped: []string{"false", "true"}},
	"agent":                    {called: []string{"coder"}},
	"llmModel":                 {called: []string{"openai/gpt-5"}},
	"mcpConfig": {called: []string{"{sseServers: [{url: 'https://example.com'}]}",
		"{stdioServers: [{name: a, command: a}]}"}},
	"workspace":        {called: []string{"{size: 1Gi}"}},
	"sessionClassName": {skipped: []string{"default", "mine"}, called: []string{"theirs"}},
	"suspend":          {skipped: []string{"true"}},
	"restartAt":        {skipped: []string{"'2026-01-01T00:00:00Z'"}},
	"idleTimeout":      {called: []string{"1h"}},
	"startDeadline":    {called: []string{"1h"}},
	"maxDuration":      {called: []string{"1h"}},
	"ttlAfterStopped":  {called: []string{"1h"}},
}

func task(repo string) string {
	return "{gitProvider: github, taskType: OPEN_ISSUE, repo: '" + repo + "', issueNumber: 1, title: t}"
}

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

func TestTheAPIServerCallsTheWebhookOnlyIfNecessary(t *testing.T) {
	namespace := brokenWebhook(t)
	jane := user(t, "jane-webhook", namespace, use("default"))
	mayUse(t, "jane-webhook", "mine")
	eventually(t, func() (bool, error) {
		return !isCalled(jane.Create(t.Context(), object(t, "Conversation", namespace, "sessionClassName: mine"),
			client.DryRunAll)), nil
	})
	if have := slices.Sorted(maps.Keys(webhookFields)); !slices.Equal(have, fieldsOf(t)) {
		t.Fatalf("the table has %v, the schema %v", have, fieldsOf(t))
	}
	type specValue struct {
		field, spec string
		called      bool
	}
	var all []specValue
	for field, values := range webhookFields {
		for _, value := range values.called {
			all = append(all, specValue{field, field + ": " + value, true})
		}
		for _, value := range values.skipped {
			all = append(all, specValue{field, field + ": " + value, false})
		}
	}
	check := func(t *testing.T, spec string, called bool) {
		t.Helper()
		conversation := &v1alpha1.ConversationSpec{}
		if err := yaml.Unmarshal([]byte(spec), conversation); err != nil {
			t.Fatal(err)
		}
		called = called || len(ruleErrors(conversation)) > 0
		err := jane.Create(t.Context(), object(t, "Conversation", namespace, spec), client.DryRunAll)
		// If the schema refuses a request, the API server calls no webhook. Such a request is not
		// checked here.
		if schema := err != nil && !isCalled(err); !schema && isCalled(err) != called {
			t.Errorf("%s: called: %v (%v), want %v", spec, isCalled(err), err, called)
		}
	}
	for i, a := range all {
		t.Run(a.spec, func(t *testing.T) {
			t.Parallel()
			check(t, a.spec, a.called)
			for _, b := range all[:i] {
				if a.field != b.field {
					check(t, a.spec+"\n"+b.spec, a.called || b.called)
				}
			}
		})
	}
}

func TestTheWebhookIsSkippedOnlyForValidValues(t *testing.T) {
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

// words returns all words of at most n letters.
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

func TestPlainSessionsWorkWithoutTheWebhook(t *testing.T) {
	namespace := brokenWebhook(t)
	owner := user(t, "owner-webhook", namespace, use("default"))
	stranger := user(t, "stranger-webhook", namespace)
	if err := stranger.create(t, object(t, "Conversation", namespace, "{}")); !isCalled(err) {
		t.Errorf("without a right to use the settings: %v", err)
	}
	plain := object(t, "Conversation", namespace, "{repository: owner/name, initialUserMsg: hello}")
	expectAccepted(t, owner.create(t, plain))
	tools := object(t, "Conversation", namespace, "mcpConfig: {stdioServers: [{name: a, command: a}]}")
	createWithoutWebhook(t, tools)
	set := func(field string, value any) func(*unstructured.Unstructured) {
		return setField(t, value, "spec", field)
	}
	for i, step := range []struct {
		actor  *actor
		target *unstructured.Unstructured
		change func(*unstructured.Unstructured)
		called bool
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
		err := step.actor.change(t, step.target, step.change)
		if isCalled(err) != step.called || err != nil && !step.called {
			t.Errorf("step %d: %v, want a call: %v", i, err, step.called)
		}
	}
}

// createWithoutWebhook creates a Conversation that needs the webhook, although the webhook is
// broken. For this one creation, the API server ignores the failure of the webhook.
func createWithoutWebhook(t *testing.T, o *unstructured.Unstructured) {
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
	eventually(t, func() (bool, error) { return !isCalled(admin(t).Create(t.Context(), o)), nil })
	before.ResourceVersion = down.ResourceVersion
	if err := env.Client.Update(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (bool, error) {
		return isCalled(admin(t).Create(t.Context(), object(t, "Conversation", namespace, "maxDuration: 1h"),
			client.DryRunAll)), nil
	})
}
