package webhook

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestConflictingFieldsAreRefused(t *testing.T) {
	const (
		replay     = "{name: events, key: events.json}"
		microagent = "{repo: o/r}"
		image      = "{configMapKeyRef: {name: screens, key: a.png}, mediaType: image/png}"
	)
	task := task("o/r")
	runSpecCases(t, "Conversation", []specCase{
		{name: "refuses images in both forms", spec: "{imageURLs: ['https://example.com/a.png'], images: [{url: " +
			"'https://example.com/a.png'}]}", field: "spec.images", message: "must be absent when imageURLs is set"},
		{name: "accepts one-shot with a message", spec: "{oneShot: true, initialUserMsg: hi}"},
		{name: "accepts one-shot with images", spec: "{oneShot: true, imageURLs: ['https://example.com/a.png']}"},
		{name: "accepts one-shot with a task", spec: "{oneShot: true, suggestedTask: " + task + "}"},
		{name: "accepts one-shot with a microagent", spec: "{oneShot: true, createMicroagent: " + microagent + "}"},
		{name: "accepts one-shot with instructions", spec: "{oneShot: true, conversationInstructions: be brief}"},
		{name: "accepts one-shot with a replay", spec: "{oneShot: true, replayJSONRef: " + replay + "}"},
		{name: "refuses one-shot without a task", spec: "{oneShot: true, repository: o/r}", field: "spec.oneShot",
			message: "needs something to do"},
		{name: "accepts no one-shot without a task", spec: "oneShot: false"},
		{name: "accepts a replay alone", spec: "replayJSONRef: " + replay},
		{name: "refuses a replay with a message", spec: "{initialUserMsg: hi, replayJSONRef: " + replay + "}",
			field: "spec.initialUserMsg", message: "must be absent when replayJSONRef is set"},
		{name: "refuses a replay with images", spec: "{imageURLs: ['https://example.com/a.png'], replayJSONRef: " + replay +
			"}", field: "spec.imageURLs", message: "must be absent when replayJSONRef is set"},
		{name: "refuses a replay with images in ConfigMaps", spec: "{images: [" + image + "], replayJSONRef: " + replay + "}",
			field: "spec.images", message: "must be absent when replayJSONRef is set"},
		{name: "refuses a replay with a task", spec: "{suggestedTask: " + task + ", replayJSONRef: " + replay + "}",
			field: "spec.suggestedTask", message: "must be absent when replayJSONRef is set"},
		{name: "refuses a task with a microagent", spec: "{suggestedTask: " + task + ", createMicroagent: " + microagent +
			"}", field: "spec.createMicroagent", message: "must be absent when suggestedTask is set"},
		{name: "accepts a task with a message", spec: "{initialUserMsg: hi, suggestedTask: " + task + "}"},
		{name: "accepts a branch of a repository", spec: "{selectedBranch: main, repository: o/r}"},
		{name: "accepts a branch of a task's repository", spec: "{selectedBranch: main, suggestedTask: " + task + "}"},
		{name: "accepts a branch of a microagent's repository", spec: "{selectedBranch: main, createMicroagent: " +
			microagent + "}"},
		{name: "refuses a branch without a repository", spec: "selectedBranch: main", field: "spec.selectedBranch",
			message: "needs a repository"},
		{name: "refuses a replay with a microagent", spec: "{createMicroagent: {repo: o/r}, replayJSONRef: " + replay + "}",
			field: "spec.createMicroagent", message: "must be absent when replayJSONRef is set"},
		{name: "refuses a provider that differs from the task's", spec: "{gitProvider: gitlab, suggestedTask: " + task + "}",
			field: "spec.gitProvider", message: "must equal the gitProvider of suggestedTask"},
		{name: "accepts the task's provider", spec: "{gitProvider: github, suggestedTask: " + task + "}"},
	})
}

var immutableFields = map[string]any{
	"repository": "o/r", "gitProvider": "github", "selectedBranch": "main", "initialUserMsg": "hi",
	"imageURLs":     []any{"https://example.com/a.png"},
	"agent":         "coder",
	"llmModel":      "openai/gpt-5",
	"images":        []any{map[string]any{"url": "https://example.com/a.png"}},
	"replayJSONRef": map[string]any{"name": "events", "key": "events.json"},
	"suggestedTask": map[string]any{
		"gitProvider": "github", "taskType": "OPEN_ISSUE", "repo": "o/r", "issueNumber": int64(1), "title": "t",
	},
	"createMicroagent":         map[string]any{"repo": "o/r"},
	"conversationInstructions": "Be brief.",
	"mcpConfig":                map[string]any{"stdioServers": []any{map[string]any{"name": "a", "command": "a"}}},
	"workspace":                map[string]any{"size": "1Gi"},
	"sessionClassName":         "default",
	"oneShot":                  true,
}

// The schema itself refuses a changed value, so this test only adds and removes fields.
// userSettingsName has a default, so it is never absent.
func TestImmutableFieldsCannotBeAddedOrRemoved(t *testing.T) {
	lifecycle := []string{"suspend", "restartAt", "idleTimeout", "startDeadline", "maxDuration", "ttlAfterStopped"}
	all := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(immutableFields)), lifecycle,
		[]string{"userSettingsName"})))
	if !slices.Equal(all, fieldsOf(t)) {
		t.Fatalf("the table has %v, the schema %v", all, fieldsOf(t))
	}
	namespace := env.Namespace(t, nil)
	for name, value := range immutableFields {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with, without := object(t, "Conversation", namespace, "{}"), object(t, "Conversation", namespace, "{}")
			if other, needed := map[string]string{"selectedBranch": "repository", "oneShot": "initialUserMsg"}[name]; needed {
				setField(t, immutableFields[other], "spec", other)(with)
				setField(t, immutableFields[other], "spec", other)(without)
			}
			setField(t, value, "spec", name)(with)
			remove := func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "spec", name) }
			expectImmutable(t, admin(t).change(t, mustCreate(t, with), remove), name)
			expectImmutable(t, admin(t).change(t, mustCreate(t, without), setField(t, value, "spec", name)), name)
		})
	}
}

// expectImmutable expects that err refuses the change of the named field. The error may come from
// the schema or from the webhook: both have the same message.
func expectImmutable(t *testing.T, err error, name string) {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || len(status.Status().Details.Causes) != 1 {
		t.Fatalf("should be refused for %s, got: %v", name, err)
	}
	cause := status.Status().Details.Causes[0]
	if cause.Field != "spec."+name || !strings.HasSuffix(cause.Message,
		": cannot be changed: create a new Conversation") {
		t.Errorf("refused for %s: %s", cause.Field, cause.Message)
	}
}

func TestOneShotMayChangeBetweenFalseAndAbsent(t *testing.T) {
	conversation := mustCreate(t, object(t, "Conversation", env.Namespace(t, nil), "{}"))
	expectAccepted(t, admin(t).change(t, conversation, setField(t, false, "spec", "oneShot")))
	expectAccepted(t, admin(t).change(t, conversation, func(o *unstructured.Unstructured) {
		unstructured.RemoveNestedField(
			o.Object, "spec", "oneShot")
	}))
}

// The schema already refuses the change of userSettingsName, but the webhook must report this
// change, too.
func TestARefusalNamesEveryChangedField(t *testing.T) {
	before, after := &v1alpha1.Conversation{}, &v1alpha1.Conversation{}
	before.Spec.UserSettingsName, after.Spec.UserSettingsName = "ada", "bob"
	after.Spec.OneShot, after.Spec.Suspend = true, true
	errs := changeErrors(before, after)
	if len(errs) != 2 || errs[0].Field != "spec.userSettingsName" || errs[1].Field != "spec.oneShot" {
		t.Errorf("got %v", errs)
	}
}

// In the schema, these lists are maps by name or URL, so their order does not matter.
func TestToolServersMayBeReordered(t *testing.T) {
	conversation := mustCreate(t, object(t, "Conversation", env.Namespace(t, nil), "mcpConfig: "+
		"{sseServers: [{url: 'https://a.example.com'}, {url: 'https://b.example.com'}], shttpServers: [{url: "+
		"'https://c.example.com'}, {url: 'https://d.example.com'}], "+
		"stdioServers: [{name: a, command: a, env: [{name: A, value: one}, {name: B, value: two}]}, {name: b, command: b}]}"))
	reorder := func(o *unstructured.Unstructured) {
		tools := o.Object["spec"].(map[string]any)["mcpConfig"].(map[string]any)
		for _, server := range tools["stdioServers"].([]any) {
			if variables, has := server.(map[string]any)["env"]; has {
				slices.Reverse(variables.([]any))
			}
		}
		for _, list := range [][]any{tools["sseServers"].([]any), tools["shttpServers"].([]any),
			tools["stdioServers"].([]any)} {
			slices.Reverse(list)
		}
	}
	expectAccepted(t, admin(t).change(t, conversation, reorder))
	expectAccepted(t, admin(t).change(t, conversation, func(o *unstructured.Unstructured) {
		reorder(o)
		setField(t, "1h", "spec", "idleTimeout")(o)
	}))
}
