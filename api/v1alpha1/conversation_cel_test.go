package v1alpha1_test

import (
	"maps"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	task       = "{gitProvider: github, taskType: MERGE_CONFLICTS, repo: o/r, issueNumber: 7, title: t}"
	microagent = "{repo: o/r}"
	replay     = "{name: events, key: events.json}"
	image      = "{configMapKeyRef: {name: screens, key: a.png}, mediaType: image/png}"
)

func TestOnlyValidConversationSpecsAreAccepted(t *testing.T) {
	runSpecCases(t, "Conversation", []specCase{
		{name: "accepts no spec"},
		{name: "accepts an empty spec", spec: "{}"},

		{name: "rejects settings with an invalid name", spec: "userSettingsName: A.b", field: "spec.userSettingsName"},
		{name: "rejects settings with a long name", spec: "userSettingsName: " + long(54), field: "spec.userSettingsName"},
		{name: "rejects an empty repository", spec: `repository: ""`, field: "spec.repository"},
		{name: "rejects a long repository", spec: "repository: " + long(2049), field: "spec.repository"},
		{name: "accepts the provider github", spec: "gitProvider: github"},
		{name: "accepts the provider gitlab", spec: "gitProvider: gitlab"},
		{name: "accepts the provider bitbucket", spec: "gitProvider: bitbucket"},
		{name: "accepts the provider enterprise_sso", spec: "gitProvider: enterprise_sso"},
		{name: "rejects another provider", spec: "gitProvider: GitHub", field: "spec.gitProvider"},
		{name: "rejects an empty message", spec: `initialUserMsg: ""`, field: "spec.initialUserMsg"},
		{name: "accepts the longest message", spec: "initialUserMsg: " + long(131072)},
		{name: "rejects a longer message", spec: "initialUserMsg: " + long(131073), field: "spec.initialUserMsg"},
		{name: "rejects an empty list of images", spec: "imageURLs: []", field: "spec.imageURLs"},
		{name: "accepts the most images", spec: "imageURLs: " + listOf(16, "%d")},
		{name: "rejects more images", spec: "imageURLs: " + listOf(17, "%d"), field: "spec.imageURLs", message: "16"},
		{name: "accepts the longest URL of an image", spec: "imageURLs: [" + long(16384) + "]"},
		{name: "rejects a long image and names the alternative", spec: "imageURLs: [u, " + long(16385) + "]",
			field: "spec.imageURLs[1]", message: "over 16384 chars: use a ConfigMap"},
		{name: "rejects an image of 1.4 MB in the same way", spec: "imageURLs: [" + long(1400000) + "]",
			field: "spec.imageURLs[0]", message: "over 16384 chars: use a ConfigMap"},
		{name: "accepts the longest model", spec: "llmModel: " + long(253)},
		{name: "rejects a longer model", spec: "llmModel: " + long(254), field: "spec.llmModel"},
		{name: "rejects a model with a space", spec: "llmModel: 'openai/gpt 5'", field: "spec.llmModel"},
		{name: "rejects an empty agent", spec: "agent: ''", field: "spec.agent"},
		{name: "rejects an empty image", spec: `imageURLs: [""]`, field: "spec.imageURLs[0]"},
		{name: "accepts images in ConfigMaps among others", spec: "images: [{url: 'https://example.com/a.png'}, " + image +
			", {url: u}]"},
		{name: "rejects no images", spec: "images: []", field: "spec.images"},
		{name: "accepts the most images of any kind", spec: "images: " + listOf(16, "{configMapKeyRef: {name: c, key: %d}, "+
			"mediaType: image/png}")},
		{name: "rejects more images of any kind", spec: "images: " + listOf(17, "{configMapKeyRef: {name: c, key: %d}, "+
			"mediaType: image/png}"), field: "spec.images", message: "16"},
		{name: "rejects an image without a URL and a ConfigMap", spec: "images: [{}]", field: "spec.images[0]",
			message: "exactly one of the fields in [url configMapKeyRef]"},
		{name: "rejects an image with a URL and a ConfigMap", spec: "images: [{url: u, configMapKeyRef: {name: c, key: k}, " +
			"mediaType: image/png}]", field: "spec.images[0]", message: "exactly one of the fields in [url configMapKeyRef]"},
		{name: "rejects an image in a ConfigMap without a media type", spec: "images: [{configMapKeyRef: {name: c, key: k}}]",
			field: "spec.images[0].mediaType", message: "if and only if configMapKeyRef is set"},
		{name: "rejects the URL of an image with a media type", spec: "images: [{url: u, mediaType: image/png}]",
			field: "spec.images[0].mediaType", message: "if and only if configMapKeyRef is set"},
		{name: "accepts the media type of SVG", spec: "images: [{configMapKeyRef: {name: c, key: k}, mediaType: " +
			"image/svg+xml}]"},
		{name: "rejects another media type", spec: "images: [{configMapKeyRef: {name: c, key: k}, mediaType: text/html}]",
			field: "spec.images[0].mediaType"},
		{name: "rejects a media type with parameters", spec: "images: [{configMapKeyRef: {name: c, key: k}, mediaType: " +
			"image/png;a=b}]", field: "spec.images[0].mediaType"},
		{name: "rejects an image without a key", spec: "images: [{configMapKeyRef: {name: c}, mediaType: image/png}]",
			field: "spec.images[0].configMapKeyRef.key"},
		{name: "rejects an image with an invalid ConfigMap name", spec: "images: [{configMapKeyRef: {name: C_, key: k}, " +
			"mediaType: image/png}]", field: "spec.images[0].configMapKeyRef.name"},
		{name: "rejects an image with an empty URL", spec: `images: [{url: ""}]`, field: "spec.images[0].url"},
		{name: "rejects an image with a long URL and names the alternative", spec: "images: [{url: " + long(16385) + "}]",
			field: "spec.images[0].url", message: "use a ConfigMap"},
		{name: "rejects a replay without a key", spec: "replayJSONRef: {name: c}", field: "spec.replayJSONRef.key"},
		{name: "rejects a replay with an invalid ConfigMap name", spec: "replayJSONRef: {name: C_, key: k}",
			field: "spec.replayJSONRef.name"},
		{name: "rejects empty instructions", spec: `conversationInstructions: ""`, field: "spec.conversationInstructions"},
		{name: "rejects long instructions", spec: "conversationInstructions: " + long(131073),
			field: "spec.conversationInstructions"},

		{name: "accepts merge conflicts", spec: "suggestedTask: " + task},
		{name: "accepts failing checks", spec: "suggestedTask: {gitProvider: github, taskType: FAILING_CHECKS, repo: o/r, " +
			"issueNumber: 7, title: t}"},
		{name: "accepts unresolved comments", spec: "suggestedTask: {gitProvider: github, taskType: UNRESOLVED_COMMENTS, " +
			"repo: o/r, issueNumber: 7, title: t}"},
		{name: "accepts an open issue", spec: "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, repo: o/r, " +
			"issueNumber: 7, title: t}"},
		{name: "rejects another task", spec: "suggestedTask: {gitProvider: github, taskType: DANCE, repo: o/r, " +
			"issueNumber: 7, title: t}", field: "spec.suggestedTask.taskType"},
		{name: "rejects a task without a provider",
			spec: "suggestedTask: {taskType: OPEN_ISSUE, repo: o/r, issueNumber: 7, " +
				"title: t}", field: "spec.suggestedTask.gitProvider"},
		{name: "rejects a task without a type",
			spec:  "suggestedTask: {gitProvider: github, repo: o/r, issueNumber: 7, title: t}",
			field: "spec.suggestedTask.taskType"},
		{name: "rejects a task without a repository", spec: "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, " +
			"issueNumber: 7, title: t}", field: "spec.suggestedTask.repo"},
		{name: "rejects a task without an issue number", spec: "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, " +
			"repo: o/r, title: t}", field: "spec.suggestedTask.issueNumber"},
		{name: "rejects an issue number of 0", spec: "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, repo: " +
			"o/r, issueNumber: 0, title: t}", field: "spec.suggestedTask.issueNumber"},
		{name: "rejects a task without a title", spec: "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, repo: " +
			"o/r, issueNumber: 7}", field: "spec.suggestedTask.title"},
		{name: "rejects a task with a long title", spec: "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, repo: " +
			"o/r, issueNumber: 7, title: " + long(1025) + "}", field: "spec.suggestedTask.title"},
		{name: "accepts a microagent with a repository only", spec: "createMicroagent: " + microagent},
		{name: "rejects a microagent without a repository", spec: "createMicroagent: {title: t}",
			field: "spec.createMicroagent.repo"},
		{name: "rejects a microagent with an unknown provider", spec: "createMicroagent: {repo: o/r, gitProvider: svn}",
			field: "spec.createMicroagent.gitProvider"},
		{name: "rejects a microagent with an empty title", spec: `createMicroagent: {repo: o/r, title: ""}`,
			field: "spec.createMicroagent.title"},

		{name: "rejects a long branch", spec: "{repository: o/r, selectedBranch: " + long(256) + "}",
			field: "spec.selectedBranch"},

		{name: "accepts a workspace", spec: "workspace: {size: 1.5Gi, storageClassName: fast}"},
		{name: "rejects a workspace without a size", spec: "workspace: {}", field: "spec.workspace.size"},
		{name: "rejects a workspace of size 0", spec: `workspace: {size: "0"}`, field: "spec.workspace.size"},
		{name: "rejects a workspace with an unknown unit", spec: "workspace: {size: 10GB}", field: "spec.workspace.size"},
		{name: "rejects an invalid storage class name", spec: `workspace: {size: 1Gi, storageClassName: "Foo Bar"}`,
			field: "spec.workspace.storageClassName"},
		{name: "rejects an empty storage class", spec: `workspace: {size: 1Gi, storageClassName: ""}`,
			field: "spec.workspace.storageClassName"},

		{name: "accepts no idle timeout", spec: "idleTimeout: 0s"},
		{name: "accepts the longest idle timeout", spec: "idleTimeout: 720h"},
		{name: "rejects a longer idle timeout", spec: "idleTimeout: 720h1s", field: "spec.idleTimeout",
			message: "must be at most 720h"},
		{name: "rejects a negative idle timeout", spec: "idleTimeout: -1s", field: "spec.idleTimeout",
			message: "should match"},
		{name: "rejects an idle timeout that is not a duration", spec: "idleTimeout: 10 minutes", field: "spec.idleTimeout",
			message: "should match"},
		{name: "accepts the shortest start deadline", spec: "startDeadline: 1s"},
		{name: "rejects a shorter start deadline", spec: "startDeadline: 999ms", field: "spec.startDeadline",
			message: "must be at least 1s"},
		{name: "rejects a longer start deadline", spec: "startDeadline: 25h", field: "spec.startDeadline",
			message: "must be at most 24h"},
		{name: "accepts a TTL of 0", spec: "ttlAfterStopped: 0s"},
		{name: "rejects a negative TTL", spec: "ttlAfterStopped: -1m", field: "spec.ttlAfterStopped",
			message: "should match"},
		{name: "rejects a long TTL", spec: "ttlAfterStopped: 8761h", field: "spec.ttlAfterStopped",
			message: "must be at most 8760h"},
		{name: "rejects a restart time that is not a time", spec: "restartAt: tomorrow", field: "spec.restartAt"},
		{name: "rejects a suspend that is not a boolean", spec: `suspend: "yes"`, field: "spec.suspend"},
	})
}

func TestConversationNamesAreDNSLabels(t *testing.T) { namesAreDNSLabels(t, "Conversation") }

func TestAnEmptyConversationGetsItsDefaults(t *testing.T) {
	conversation := mustCreate(t, "Conversation", env.Namespace(t, nil), "")
	want := map[string]any{"userSettingsName": "default"}
	if got := conversation.Object["spec"]; !reflect.DeepEqual(got, want) {
		t.Errorf("want %v, got %v", want, got)
	}
	expectUnobserved(t, conversation)
}

// conversationFields maps the fields of an HTTP request for a new conversation to fields of the
// spec. The field conversation_id is not in this list, because it becomes the name of the object.
var conversationFields = []struct{ document, field, value string }{
	{"repository", "repository", "owner/name"},
	{"git_provider", "gitProvider", "gitlab"},
	{"selected_branch", "selectedBranch", "main"},
	{"initial_user_msg", "initialUserMsg", `"Fix the\nbuild"`},
	{"image_urls", "imageURLs", `["https://example.com/a.png", "data:image/png;base64,AA=="]`},
	{"replay_json", "replayJSONRef", replay},
	{"suggested_task", "suggestedTask", "{gitProvider: bitbucket, taskType: OPEN_ISSUE, repo: o/r, issueNumber: 12, " +
		"title: A title}"},
	{"create_microagent", "createMicroagent", "{repo: o/r, gitProvider: enterprise_sso, title: A title}"},
	{"conversation_instructions", "conversationInstructions", "Be brief."},
	{"agent", "agent", "CodeActAgent"},
	{"llm_model", "llmModel", "openai/gpt-5"},
	{"mcp_config", "mcpConfig", mcpConfigOfEveryField},
}

func TestConversationStoresEveryFieldOfTheHTTPAPI(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, f := range conversationFields {
		t.Run(f.document, func(t *testing.T) {
			t.Parallel()
			keepsField(t, "Conversation", namespace, f.field, "{"+f.field+": "+f.value+"}")
		})
	}
	t.Run("conversation_id", func(t *testing.T) {
		o := object(t, "Conversation", namespace, "")
		o.SetName("0f8fad5bd9cb469fa16570867728950e")
		if err := create(t, o); err != nil {
			t.Error(err)
		}
	})
}

func TestImmutableFieldsKeepTheirValues(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, c := range []struct{ field, before, after string }{
		{"userSettingsName", "jane", "john"},
		{"repository", "o/r", "o/s"},
		{"gitProvider", "github", "gitlab"},
		{"selectedBranch", "main", "next"},
		{"initialUserMsg", "hi", "ho"},
		{"imageURLs", "[a, b]", "[b, a]"},
		{"images", "[{url: a}, " + image + "]", "[" + image + ", {url: a}]"},
		{"replayJSONRef", replay, "{name: events, key: other.json}"},
		{"suggestedTask", task, "{gitProvider: github, taskType: MERGE_CONFLICTS, repo: o/r, issueNumber: 8, title: t}"},
		{"createMicroagent", microagent, "{repo: o/r, title: t}"},
		{"conversationInstructions", "Be brief.", "Be kind."},
		{"agent", "coder", "writer"},
		{"llmModel", "openai/a", "openai/b"},
		{"mcpConfig", "{stdioServers: [{name: a, command: a}]}", "{stdioServers: [{name: a, command: b}]}"},
		{"workspace", "{size: 1Gi}", "{size: 2Gi}"},
		{"sessionClassName", "small", "large"},
		{"oneShot", "true", "false"},
	} {
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			conversation := mustCreate(t, "Conversation", namespace, "{"+c.field+": "+c.before+"}")
			expect(t, update(t, conversation, "{"+c.field+": "+c.after+"}"), "spec."+c.field,
				"cannot be changed: create a new Conversation")
		})
	}
}

func TestLifecycleFieldsCanBeChanged(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, c := range []struct{ field, before, after string }{
		{"suspend", "false", "true"},
		{"restartAt", `"2026-01-01T00:00:00Z"`, `"2026-01-02T00:00:00Z"`},
		{"idleTimeout", "30m", "1h"},
		{"startDeadline", "10m", "20m"},
		{"ttlAfterStopped", "1h", "0s"},
	} {
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			conversation := mustCreate(t, "Conversation", namespace, "{"+c.field+": "+c.before+"}")
			for _, spec := range []string{"{" + c.field + ": " + c.after + "}", "{}", "{" + c.field + ": " + c.before + "}"} {
				if err := update(t, conversation, spec); err != nil {
					t.Errorf("change to %s: %v", spec, err)
				}
			}
		})
	}
}

// update replaces the spec as an editor would: userSettingsName keeps its default if the new spec
// does not set it.
func update(t *testing.T, o *unstructured.Unstructured, spec string) error {
	t.Helper()
	changed := o.DeepCopy()
	setSpec(t, changed, spec)
	fields := map[string]any{"userSettingsName": "default"}
	maps.Copy(fields, changed.Object["spec"].(map[string]any))
	changed.Object["spec"] = fields
	err := env.Client.Update(t.Context(), changed, client.FieldValidation("Strict"))
	if err == nil {
		o.Object = changed.Object
	}
	return err
}

func TestOnlyValidConversationStatusesAreAccepted(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, c := range []struct {
		name, field string
		status      v1alpha1.ConversationStatus
	}{
		{name: "accepts STARTING", status: v1alpha1.ConversationStatus{State: v1alpha1.StateStarting}},
		{name: "accepts RUNNING", status: v1alpha1.ConversationStatus{State: v1alpha1.StateRunning}},
		{name: "accepts STOPPED", status: v1alpha1.ConversationStatus{State: v1alpha1.StateStopped}},
		{name: "rejects another state", field: "status.state", status: v1alpha1.ConversationStatus{State: "PAUSED"}},
		{name: "rejects a long reason", field: "status.reason", status: v1alpha1.ConversationStatus{Reason: long(65)}},
		{name: "rejects a long message", field: "status.message", status: v1alpha1.ConversationStatus{Message: long(2049)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conversation := &v1alpha1.Conversation{}
			conversation.Namespace, conversation.GenerateName = namespace, "t-"
			if err := create(t, conversation); err != nil {
				t.Fatal(err)
			}
			conversation.Status = c.status
			expect(t, env.Client.Status().Update(t.Context(), conversation), c.field, "")
		})
	}
}

func TestConversationsCanBeSelectedByUserAndState(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, "Conversation", namespace, "userSettingsName: jane")
	mustCreate(t, "Conversation", namespace, "userSettingsName: john")
	for selector, want := range map[string]int{"spec.userSettingsName": 1, "status.state": 0} {
		var list v1alpha1.ConversationList
		err := env.Client.List(t.Context(), &list, client.InNamespace(namespace), client.MatchingFields{selector: "jane"})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s: want %d conversations, got %d (%v)", selector, want, len(list.Items), err)
		}
	}
}
