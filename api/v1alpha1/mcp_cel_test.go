package v1alpha1_test

import "testing"

const mcpConfigOfEveryField = `{` +
	`sseServers: [{url: "https://sse.example.com/events", apiKeyRef: {name: sse, key: api-key}}], ` +
	`stdioServers: [{name: fetch-1, command: /usr/bin/fetch, args: ["--depth", "2 pages"], ` +
	`env: [{name: LEVEL, value: debug}, {name: TOKEN, secretRef: {name: fetch, key: token}}]}], ` +
	`shttpServers: [{url: "https://http.example.com/mcp", apiKeyRef: {name: shttp, key: api-key}}]}`

// mcpCases apply to both kinds that have an MCPConfig.
func mcpCases() []specCase {
	const at = "spec.mcpConfig."
	mcp := func(config string) string { return "mcpConfig: {" + config + "}" }
	env := func(variable string) string {
		return mcp("stdioServers: [{name: a, command: a, env: [" + variable + "]}]")
	}
	return []specCase{
		{name: "accepts an empty MCP config", spec: mcp("")},
		{name: "accepts different URLs in both lists", spec: mcp(`sseServers: [{url: "https://a.example.com"}], ` +
			`shttpServers: [{url: "https://b.example.com"}]`)},
		{name: "rejects an SSE server without a URL", spec: mcp("sseServers: [{}]"), field: at + "sseServers[0].url"},
		{name: "rejects an SSE server with an empty URL", spec: mcp(`sseServers: [{url: ""}]`), field: at +
			"sseServers[0].url"},
		{name: "rejects an HTTP server with a long URL", spec: mcp("shttpServers: [{url: " + long(2049) + "}]"), field: at +
			"shttpServers[0].url"},
		{name: "rejects an SSE server listed twice", spec: mcp("sseServers: [{url: u}, {url: u}]"), field: at +
			"sseServers[1]", message: "Duplicate value"},
		{name: "rejects an HTTP server listed twice", spec: mcp("shttpServers: [{url: u}, {url: u}]"), field: at +
			"shttpServers[1]", message: "Duplicate value"},
		{name: "rejects a server in both lists", spec: mcp("sseServers: [{url: u}], shttpServers: " +
			"[{url: v}, {url: u}]"), field: at + "shttpServers", message: "must not repeat a url of sseServers"},
		{name: "rejects an API key reference without a key", spec: mcp("sseServers: [{url: u, apiKeyRef: {name: s}}]"),
			field: at + "sseServers[0].apiKeyRef.key"},
		{name: "accepts the most SSE servers", spec: mcp("sseServers: " + listOf(32, "{url: %d}"))},
		{name: "rejects more SSE servers", spec: mcp("sseServers: " + listOf(33, "{url: %d}")), field: at + "sseServers",
			message: "32"},
		{name: "rejects more HTTP servers", spec: mcp("shttpServers: " + listOf(33, "{url: %d}")), field: at + "shttpServers",
			message: "32"},
		{name: "rejects more stdio servers", spec: mcp("stdioServers: " + listOf(33, "{name: %d, command: a}")), field: at +
			"stdioServers", message: "32"},

		{name: "accepts a stdio name with every kind of character", spec: mcp("stdioServers: [{name: aZ0_-, command: a}]")},
		{name: "rejects a stdio server without a name", spec: mcp("stdioServers: [{command: a}]"), field: at +
			"stdioServers[0].name"},
		{name: "rejects a stdio name with a dot", spec: mcp("stdioServers: [{name: a.b, command: a}]"), field: at +
			"stdioServers[0].name"},
		{name: "rejects a long stdio name", spec: mcp("stdioServers: [{name: " + long(64) + ", command: a}]"), field: at +
			"stdioServers[0].name"},
		{name: "rejects two stdio servers with the same name", spec: mcp("stdioServers: [{name: a, command: a}, {name: a, " +
			"command: b}]"), field: at + "stdioServers[1]", message: "Duplicate value"},
		{name: "rejects a stdio server without a command", spec: mcp("stdioServers: [{name: a}]"), field: at +
			"stdioServers[0].command"},
		{name: "rejects a command with arguments in it", spec: mcp("stdioServers: [{name: a, command: npx server}]"),
			field: at + "stdioServers[0].command"},
		{name: "accepts an argument with spaces", spec: mcp(`stdioServers: [{name: a, command: a, args: ["two words"]}]`)},
		{name: "rejects a long argument", spec: mcp("stdioServers: [{name: a, command: a, args: [" + long(4097) + "]}]"),
			field: at + "stdioServers[0].args[0]"},
		{name: "rejects too many arguments", spec: mcp("stdioServers: [{name: a, command: a, args: " + listOf(65, "%d") +
			"}]"), field: at + "stdioServers[0].args", message: "64"},

		{name: "accepts an empty environment value", spec: env(`{name: A, value: ""}`)},
		{name: "rejects an environment name that begins with a digit", spec: env(`{name: 1A, value: v}`), field: at +
			"stdioServers[0].env[0].name"},
		{name: "rejects an environment name with a dash", spec: env(`{name: A-B, value: v}`), field: at +
			"stdioServers[0].env[0].name"},
		{name: "rejects a variable without a value or reference", spec: env(`{name: A}`), field: at +
			"stdioServers[0].env[0]", message: "value secretRef"},
		{name: "rejects a variable with a value and a reference", spec: env(`{name: A, value: v, secretRef: {name: s, key: ` +
			`k}}`), field: at + "stdioServers[0].env[0]", message: "value secretRef"},
		{name: "rejects a variable set twice", spec: env(`{name: A, value: v}, {name: A, value: w}`), field: at +
			"stdioServers[0].env[1]", message: "Duplicate value"},
		{name: "rejects a long environment value", spec: env("{name: A, value: " + long(4097) + "}"), field: at +
			"stdioServers[0].env[0].value"},
		{name: "rejects too many variables", spec: mcp("stdioServers: [{name: a, command: a, env: " + listOf(65,
			"{name: %d, value: v}") + "}]"), field: at + "stdioServers[0].env", message: "64"},
	}
}

func TestToolServersOfUserSettingsAreValidated(t *testing.T) {
	runSpecCases(t, "UserSettings", mcpCases())
}

func TestToolServersOfConversationsAreValidated(t *testing.T) {
	runSpecCases(t, "Conversation", mcpCases())
}
