package webhook

import (
	"strings"
	"testing"
)

type specCase struct {
	name    string
	spec    string
	field   string
	message string
}

func runSpecCases(t *testing.T, kind string, cases []specCase) {
	t.Helper()
	namespace := env.Namespace(t, nil)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := admin(t).create(t, object(t, kind, namespace, c.spec))
			if c.field == "" {
				expectAccepted(t, err)
			} else {
				expectRefused(t, err, c.message, c.field)
			}
		})
	}
}

func TestFieldsOfUserSettingsAreValidated(t *testing.T) {
	const (
		image = "must be an image reference"
		email = "must be an email address"
		host  = "must be a host or host:port"
	)
	token := func(host string) string {
		return "secretsStore: {providerTokens: [{provider: github}, {provider: gitlab, host: '" + host + "'}]}"
	}
	const tokenHost = "spec.secretsStore.providerTokens[1].host"
	runSpecCases(t, "UserSettings", []specCase{
		{name: "accepts no settings", spec: "{}"},
		{name: "accepts a model with a provider", spec: "llmModel: openhands/claude-sonnet-4-20250514"},
		{name: "accepts a well-known model", spec: "llmModel: claude-opus-4-5"},
		{name: "accepts any model with a base URL", spec: "{llmModel: mystery, llmBaseURL: 'https://llm.example.com'}"},
		{name: "refuses an unknown model without a provider", spec: "llmModel: mystery", field: "spec.llmModel",
			message: "must name the provider, as provider/model"},
		{name: "accepts an https base URL", spec: "llmBaseURL: https://llm.example.com/v1?api-version=1"},
		{name: "accepts an http base URL with a port", spec: "llmBaseURL: http://llm:8080"},
		{name: "accepts a base URL at an IPv6 address", spec: "llmBaseURL: 'http://[::1]:8080/'"},
		{name: "refuses a base URL with another scheme", spec: "llmBaseURL: ftp://llm.example.com", field: "spec.llmBaseURL",
			message: "http, https"},
		{name: "refuses a base URL without a scheme", spec: "llmBaseURL: llm.example.com/v1", field: "spec.llmBaseURL",
			message: "http, https"},
		{name: "refuses a base URL without a host", spec: "llmBaseURL: 'https:///v1'", field: "spec.llmBaseURL",
			message: "with a host"},
		{name: "refuses a base URL with an impossible port", spec: "llmBaseURL: 'https://a:70000'", field: "spec.llmBaseURL",
			message: "port"},
		{name: "refuses a base URL that does not parse", spec: `llmBaseURL: "https://a b/%zz"`, field: "spec.llmBaseURL",
			message: "valid URL"},
		{name: "refuses a base URL with a key", spec: "llmBaseURL: 'https://llm.example.com/v1?api-version=1&api_key=k'",
			field: "spec.llmBaseURL", message: "llmAPIKeyRef"},
		{name: "refuses a base URL with a password", spec: "llmBaseURL: 'https://u:p@llm.example.com'",
			field: "spec.llmBaseURL", message: "llmAPIKeyRef"},

		{name: "accepts a base image with a tag", spec: "sandboxBaseContainerImage: " +
			"registry.example.com:5000/team/image:1.0"},
		{name: "accepts a base image without a registry", spec: "sandboxBaseContainerImage: debian"},
		{name: "accepts a runtime image with a digest", spec: "sandboxRuntimeContainerImage: example.com/r@sha256:" +
			strings.Repeat("a", 64)},
		{name: "refuses a base image with capitals", spec: "sandboxBaseContainerImage: example.com/Team/Image",
			field: "spec.sandboxBaseContainerImage", message: image},
		{name: "refuses a base image that is a URL", spec: "sandboxBaseContainerImage: https://example.com/image",
			field: "spec.sandboxBaseContainerImage", message: image},
		{name: "refuses a runtime image with a broken digest", spec: "sandboxRuntimeContainerImage: example.com/r@sha256:abc",
			field: "spec.sandboxRuntimeContainerImage", message: image},

		{name: "accepts an email address", spec: "email: jane.doe+parley@example.com"},
		{name: "refuses an email address with a display name", spec: "email: Jane <jane@example.com>", field: "spec.email",
			message: email},
		{name: "refuses an email address without a domain", spec: "email: jane", field: "spec.email", message: email},
		{name: "accepts a git email address", spec: "gitUserEmail: 12+jane@users.example.com"},
		{name: "refuses two git email addresses", spec: "gitUserEmail: 'a@example.com, b@example.com'",
			field: "spec.gitUserEmail", message: email},

		{name: "accepts a language", spec: "language: en"},
		{name: "accepts a language with a region", spec: "language: zh-CN"},
		{name: "accepts a well-formed language that is not known", spec: "language: xq-QX"},
		{name: "refuses a language that is a sentence", spec: "language: English please", field: "spec.language",
			message: "language tag"},

		{name: "accepts a provider's host", spec: token("Git.example.com")},
		{name: "accepts a provider's host and port", spec: token("git.example.com:8443")},
		{name: "accepts a provider's address", spec: token("[2001:db8::1]:443")},
		{name: "refuses a provider's host with a scheme", spec: token("https://git.example.com"), field: tokenHost,
			message: host},
		{name: "refuses a provider's host with a path", spec: token("git.example.com/team"), field: tokenHost, message: host},
		{name: "refuses a provider's host with a user", spec: token("jane@git.example.com"), field: tokenHost, message: host},
		{name: "refuses a provider's host with an empty port", spec: token("git.example.com:"), field: tokenHost,
			message: host},
		{name: "refuses a provider's host with an impossible port", spec: token("git.example.com:0"), field: tokenHost,
			message: host},
		{name: "refuses an invalid provider's host", spec: token("git_example"), field: tokenHost, message: host},
	})
}

func TestFieldsOfConversationsAreValidated(t *testing.T) {
	const (
		repository = "must be owner/name"
		branch     = "must be a valid branch name"
	)
	onBranch := func(name string) string { return "{repository: o/r, selectedBranch: '" + name + "'}" }
	task := func(repo string) string {
		return "suggestedTask: {gitProvider: github, taskType: OPEN_ISSUE, issueNumber: 1, title: t, repo: '" + repo + "'}"
	}
	runSpecCases(t, "Conversation", []specCase{
		{name: "accepts a session without a task", spec: "{}"},
		{name: "accepts owner and name", spec: "repository: parley-dev/parley.go"},
		{name: "accepts a repository in a subgroup", spec: "repository: group/sub/name"},
		{name: "accepts a personal repository", spec: "repository: ~jane/name"},
		{name: "accepts an https URL", spec: "repository: https://git.example.com/o/r.git"},
		{name: "accepts a file URL", spec: "repository: file:///srv/r.git"},
		{name: "refuses a name without an owner", spec: "repository: parley", field: "spec.repository", message: repository},
		{name: "refuses a repository outside of its owner", spec: "repository: o/../r", field: "spec.repository",
			message: repository},
		{name: "refuses a repository that looks like an option", spec: "repository: o/--upload-pack",
			field: "spec.repository", message: repository},
		{name: "refuses a repository with spaces", spec: "repository: o/r r", field: "spec.repository", message: repository},
		{name: "refuses an scp address", spec: "repository: 'git@git.example.com:o/r.git'", field: "spec.repository",
			message: repository},
		{name: "refuses an ssh URL", spec: "repository: ssh://git.example.com/o/r.git", field: "spec.repository",
			message: "http, https, file"},
		{name: "refuses a URL without a path", spec: "repository: https://git.example.com/", field: "spec.repository",
			message: "path of a repository"},
		{name: "refuses a file URL with a host", spec: "repository: file://srv/r.git", field: "spec.repository",
			message: "without a host"},
		{name: "refuses a repository URL with a token", spec: "repository: 'https://oauth2:t0ken@git.example.com/o/r'",
			field: "spec.repository", message: "provider token"},
		{name: "refuses a repository URL with a user", spec: "repository: 'https://jane@git.example.com/o/r'",
			field: "spec.repository", message: "provider token"},
		{name: "refuses a repository URL with a query", spec: "repository: 'https://git.example.com/o/r?private_token=t0ken'",
			field: "spec.repository", message: "provider token"},

		{name: "accepts a branch", spec: onBranch("feature/a-b.c")},
		{name: "refuses a branch with two dots", spec: onBranch("a..b"), field: "spec.selectedBranch", message: branch},
		{name: "refuses a branch with a space", spec: onBranch("a b"), field: "spec.selectedBranch", message: branch},
		{name: "refuses a branch that looks like an option", spec: onBranch("--force"), field: "spec.selectedBranch",
			message: branch},
		{name: "refuses a branch that ends in .lock", spec: onBranch("a.lock"), field: "spec.selectedBranch",
			message: branch},

		{name: "accepts images", spec: "imageURLs: ['https://example.com/a.png?size=2&signature=s', " +
			"'http://example.com/b', 'data:image/png;base64,iVBORw0KGgo=', 'DATA:image/svg+xml,%3Csvg/%3E']"},
		{name: "refuses an image with another scheme", spec: "imageURLs: ['https://example.com/a.png', " +
			"'ftp://example.com/b.png']", field: "spec.imageURLs[1]", message: "http, https, data"},
		{name: "refuses an image without a host", spec: "imageURLs: ['https:a.png']", field: "spec.imageURLs[0]",
			message: "with a host"},
		{name: "refuses an image with a password", spec: "imageURLs: ['https://u:p@example.com/a.png']",
			field: "spec.imageURLs[0]", message: "never put secrets into a spec"},
		{name: "refuses data that is not an image", spec: "imageURLs: ['data:text/html;base64,AA==']",
			field: "spec.imageURLs[0]", message: "image media type"},
		{name: "refuses data without a media type", spec: "imageURLs: ['data:,AA']", field: "spec.imageURLs[0]",
			message: "image media type"},
		{name: "accepts images of any kind", spec: "images: [{url: 'https://example.com/a.png'}, {configMapKeyRef: {name: " +
			"c, key: k}, mediaType: image/png}, {url: 'data:image/png;base64,AA=='}]"},
		{name: "refuses an image of any kind with another scheme", spec: "images: [{configMapKeyRef: {name: c, key: k}, " +
			"mediaType: image/png}, {url: 'ftp://example.com/b.png'}]", field: "spec.images[1].url",
			message: "http, https, data"},
		{name: "refuses an image without data", spec: "imageURLs: ['data:image/png;base64']", field: "spec.imageURLs[0]",
			message: "after its comma"},

		{name: "accepts a task's repository", spec: task("group/sub/name")},
		{name: "refuses a task's repository without an owner", spec: task("name"), field: "spec.suggestedTask.repo",
			message: repository},
		{name: "accepts a microagent's repository", spec: "createMicroagent: {repo: o/r}"},
		{name: "refuses a microagent's repository with a password", spec: "createMicroagent: {repo: " +
			"'https://u:p@example.com/o/r'}", field: "spec.createMicroagent.repo", message: "provider token"},
	})
}

func TestURLsOfToolServersAreValidated(t *testing.T) {
	for _, kind := range []string{"UserSettings", "Conversation"} {
		for _, list := range []string{"sseServers", "shttpServers"} {
			t.Run(kind+" "+list, func(t *testing.T) {
				servers := func(url string) string {
					return "mcpConfig: {" + list + ": [{url: 'https://mcp.example.com'}, {url: '" + url + "'}]}"
				}
				url := "spec.mcpConfig." + list + "[1].url"
				runSpecCases(t, kind, []specCase{
					{name: "accepts http", spec: servers("http://mcp:8080/sse")},
					{name: "accepts https", spec: servers("https://mcp.example.com/sse?v=1")},
					{name: "accepts ws", spec: servers("ws://mcp/sse")},
					{name: "accepts wss", spec: servers("wss://mcp/sse")},
					{name: "refuses another scheme", spec: servers("stdio://mcp"), field: url, message: "http, https, ws, wss"},
					{name: "refuses a missing host", spec: servers("http:///sse"), field: url, message: "with a host"},
					{name: "refuses a key", spec: servers("https://mcp/sse?exampleApiKey=k"), field: url, message: "apiKeyRef"},
					{name: "refuses a password", spec: servers("https://u:p@mcp/sse"), field: url, message: "apiKeyRef"},
				})
			})
		}
	}
}

func TestAllErrorsAreReportedTogether(t *testing.T) {
	namespace := env.Namespace(t, nil)
	err := admin(t).create(t, object(t, "UserSettings", namespace,
		"{llmBaseURL: nowhere, email: no-address, sandboxBaseContainerImage: Upper/Case, mcpConfig: {sseServers: "+
			"[{url: a}], shttpServers: [{url: b}]}}"))
	expectRefused(t, err, "", "spec.llmBaseURL", "spec.email", "spec.sandboxBaseContainerImage",
		"spec.mcpConfig.sseServers[0].url", "spec.mcpConfig.shttpServers[0].url")
}

func TestARefusalNeverRepeatsASecret(t *testing.T) {
	namespace := env.Namespace(t, nil)
	const canary = "canary-83b0e1"
	for _, c := range []struct{ name, kind, spec string }{
		{"base URL with a password", "UserSettings", "llmBaseURL: 'https://u:" + canary + "@example.com'"},
		{"base URL with a key", "UserSettings", "llmBaseURL: 'https://example.com?token=" + canary + "'"},
		{"base URL that does not parse", "UserSettings", "llmBaseURL: 'https://u:%zz" + canary + "@example.com'"},
		{"base URL with a key in its query", "UserSettings", "llmBaseURL: 'ftp://example.com?key=" + canary + "'"},
		{"key in the field of an address", "UserSettings", "email: " + canary},
		{"key in the field of an image", "UserSettings", "sandboxBaseContainerImage: 'https://u:" + canary + "@example.com'"},
		{"provider host with a password", "UserSettings", "secretsStore: {providerTokens: [{provider: github, host: 'u:" +
			canary + "@example.com'}]}"},
		{"SSE server with a password", "UserSettings", "mcpConfig: {sseServers: [{url: 'https://u:" + canary +
			"@example.com'}]}"},
		{"HTTP server with a password", "Conversation", "mcpConfig: {shttpServers: [{url: 'https://u:" + canary +
			"@example.com'}]}"},
		{"repository with a token", "Conversation", "repository: 'https://" + canary + "@example.com/o/r'"},
		{"repository that is a token", "Conversation", "repository: " + canary},
		{"image with a password", "Conversation", "imageURLs: ['https://u:" + canary + "@example.com/a.png']"},
		{"image among others with a password", "Conversation", "images: [{url: 'https://u:" + canary +
			"@example.com/a.png'}]"},
		{"branch", "Conversation", "{repository: o/r, selectedBranch: '" + canary + " x'}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := admin(t).create(t, object(t, c.kind, namespace, c.spec))
			if err == nil || strings.Contains(err.Error(), canary) {
				t.Errorf("should be refused without the secret, got: %v", err)
			}
		})
	}
}
