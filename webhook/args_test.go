package webhook

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// fakeKey has the length and the digits of a key, and opens nothing.
const fakeKey = "0fake1fake2fake3fake4fake5"

func TestArgumentsThatLookLikeKeys(t *testing.T) {
	for _, line := range [][]string{
		{"--api-key=" + fakeKey},
		{"--api-key", "hunter2"},
		{"-token", "hunter2"},
		{"--token", "hunter2", "--port", "8080"},
		{"--apiKey=hunter2"},
		{"--APIKEY", "hunter2"},
		{"--github.access_token=hunter2"},
		{"--client-secret=hunter2"},
		{"--password", "pa$word"},
		{"--db-passwd=hunter2"},
		{"--key=hunter2"},
		{"API_KEY=hunter2"},
		{"-e", "GITHUB_TOKEN=hunter2", "example.com/image"},
		{"--env=GITHUB_TOKEN=hunter2"},
		{"host=db user=ada password=hunter2"},
		{"sk-" + fakeKey},
		{"--model", "m", "ghp_" + fakeKey},
		{"github_pat_" + fakeKey},
		{"glpat-" + fakeKey},
		{"xoxb-" + fakeKey},
		{"--with=sk-proj-" + fakeKey + ",other"},
		{"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"},
		{"-----BEGIN RSA PRIVATE KEY-----\nAAAA"},
		{"Bearer hunter2"},
		{"--header", "Authorization: Bearer hunter2"},
		{"--header", "Authorization:Bearer hunter2"},
		{"--header=Authorization: Basic hunter2"},
		{"-H", "X-API-Key: hunter2"},
		{"-H", "X-API-Key:hunter2"},
		{"--headers", `{"Accept": "text/html", "X-Api-Key": "hunter2"}`},
		{"-c", "exec server --token hunter2"},
		{"-c", "curl -H 'Authorization: Bearer hunter2' https://example.com"},
		{"postgresql://ada:hunter2@db.example.com/db"},
		{"--url=https://example.com/mcp?v=1&api_key=hunter2"},
	} {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			if argsProblem(line) == "" {
				t.Error("should be refused")
			}
		})
	}
}

func TestOrdinaryArguments(t *testing.T) {
	for _, line := range [][]string{
		nil,
		{""},
		{"--root", "/workspace"},
		{"--port", "8080"},
		{"--token-limit=100"},
		{"--max-tokens", "100"},
		{"--max-token", "100"},
		{"--tokenizer", "gpt2"},
		{"--keyboard", "de"},
		{"--sort-key", "name"},
		{"--public-key", "ssh-ed25519"},
		{"--label", "key=value"},
		{"--token=$TOKEN"},
		{"--token", "${TOKEN}"},
		{"--token={{token}}"},
		{"--api-key", "<API_KEY>"},
		{"--api-key="},
		{"--password", "--port", "8080"},
		{"--token-file", "token"},
		{"--api-key-env", "API_KEY"},
		{"--key", "/etc/tls/tls.key"},
		{"--key=./tls.key"},
		{"--credentials", "credentials.json"},
		{"--require-token", "true"},
		{"--require-token=yes"},
		{"--no-password", "db"},
		{"-e", "GITHUB_TOKEN", "example.com/image"},
		{"run", "sk-learn-notebook-server"},
		{"--header", "Authorization: Bearer $TOKEN"},
		{"--header", "Authorization:${AUTH_HEADER}"},
		{"-c", `exec server --token "$TOKEN"`},
		{"-c", "exec server --token $(cat /run/token) --port 8080"},
		{"--prompt", "Bearers of a key: they open doors. The secret is patience."},
		{"--scope", "token:read"},
		{"postgresql://ada:$PASSWORD@db.example.com/db"},
		{"postgresql://ada@db.example.com/db"},
		{"https://example.com/mcp?page=2&token=${TOKEN}"},
		{"https://example.com/key=/a@b:c"},
		{"-y", "@modelcontextprotocol/server-filesystem@1.0.0", "/workspace"},
		{"git+https://example.com/o/r@0123456789abcdef0123456789abcdef01234567"},
		{"sha256:" + strings.Repeat("0a", 32)},
	} {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			if problem := argsProblem(line); problem != "" {
				t.Errorf("should be accepted: %s", problem)
			}
		})
	}
}

func TestStdioServersTakeKeysFromTheirEnvironment(t *testing.T) {
	for _, kind := range []string{"UserSettings", "Conversation"} {
		t.Run(kind, func(t *testing.T) {
			servers := func(args ...string) string {
				list, err := json.Marshal(slices.Concat([]string{"--root", "/workspace"}, args))
				if err != nil {
					t.Fatal(err)
				}
				return "mcpConfig: {stdioServers: [{name: a, command: a, args: [--port, '8080']}, {name: b, command: b, args: " +
					string(list) + "}]}"
			}
			const args = "spec.mcpConfig.stdioServers[1].args"
			runSpecCases(t, kind, []specCase{
				{name: "accepts ordinary arguments", spec: servers("--token-limit=100")},
				{name: "accepts a reference", spec: servers("--token", "$TOKEN")},
				{name: "refuses a key by the name of its flag", spec: servers("--token", "hunter2"), field: args,
					message: "name a Secret in env"},
				{name: "refuses a key by how it begins", spec: servers("sk-" + fakeKey), field: args,
					message: "name a Secret in env"},
				{name: "names several in one argument list once", spec: servers("--token", "hunter2", "--api-key=hunter2"),
					field: args},
			})
		})
	}
}

func TestVariablesOfStdioServersThatNameKeysTakeThemFromSecrets(t *testing.T) {
	for _, kind := range []string{"UserSettings", "Conversation"} {
		t.Run(kind, func(t *testing.T) {
			variable := func(name, value string) string {
				return "mcpConfig: {stdioServers: [{name: a, command: a, env: [{name: LEVEL, value: debug}, {name: " + name +
					", value: '" + value + "'}]}]}"
			}
			const value, message = "spec.mcpConfig.stdioServers[0].env[1].value", "name a Secret in secretRef"
			runSpecCases(t, kind, []specCase{
				{name: "accepts an ordinary value", spec: variable("MAX_TOKENS", "100")},
				{name: "accepts a file that has the key", spec: variable("API_KEY", "/run/keys/api")},
				{name: "accepts an empty value", spec: variable("API_KEY", "")},
				{name: "refuses a key by the variable's name", spec: variable("API_KEY", "hunter2"), field: value,
					message: message},
				{name: "refuses a header by the variable's name", spec: variable("AUTHORIZATION", "Bearer hunter2"), field: value,
					message: message},
				{name: "refuses a key by how it begins", spec: variable("LOGIN", "sk-"+fakeKey), field: value, message: message},
				{name: "refuses a password in a URL", spec: variable("DATABASE_URL", "postgresql://ada:hunter2@db.example.com/db"),
					field: value, message: message},
			})
		})
	}
}

func TestAValueThatWasStoredKeepsNobodyFromOtherChanges(t *testing.T) {
	config := &v1alpha1.MCPConfig{StdioServers: []v1alpha1.MCPStdioServer{{
		Name: "a", Command: "a", Env: []v1alpha1.MCPEnvVar{{Name: "API_KEY", Value: ptr.To("hunter2")}},
	}}}
	settings := &v1alpha1.UserSettings{Spec: v1alpha1.UserSettingsSpec{MCPConfig: config}}
	if errs := userSettingsErrors(settings, literals(nil)); len(errs) != 1 {
		t.Errorf("a new value: %v", errs)
	}
	if errs := userSettingsErrors(settings, literals(config)); len(errs) != 0 {
		t.Errorf("a value that was there: %v", errs)
	}
}

func TestAValueThatWasStoredIsNotLetIntoAnotherVariable(t *testing.T) {
	with := func(server, variable string) string {
		return "mcpConfig: {stdioServers: [{name: " + server + ", command: a, env: [{name: " + variable +
			", value: hunter2}]}]}"
	}
	for name, c := range map[string]struct{ before, after string }{
		"by a new name":   {with("a", "LEVEL"), with("a", "API_KEY")},
		"in a new server": {with("a", "LEVEL"), with("b", "API_KEY")},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := env.Namespace(t, nil)
			settings := mustCreate(t, object(t, "UserSettings", namespace, c.before))
			spec := object(t, "UserSettings", namespace, c.after).Object["spec"]
			expectRefused(t, admin(t).change(t, settings, setField(t, spec, "spec")), "name a Secret in secretRef",
				"spec.mcpConfig.stdioServers[0].env[0].value")
		})
	}
	t.Run("of another server", func(t *testing.T) {
		stored := &v1alpha1.MCPConfig{StdioServers: []v1alpha1.MCPStdioServer{{Name: "a", Command: "a",
			Env: []v1alpha1.MCPEnvVar{{Name: "API_KEY", Value: ptr.To("hunter2")}}}}}
		copied := stored.DeepCopy()
		copied.StdioServers = append(copied.StdioServers, *copied.StdioServers[0].DeepCopy())
		copied.StdioServers[1].Name = "b"
		errs := userSettingsErrors(&v1alpha1.UserSettings{Spec: v1alpha1.UserSettingsSpec{MCPConfig: copied}},
			literals(stored))
		if len(errs) != 1 || errs[0].Field != "spec.mcpConfig.stdioServers[1].env[0].value" {
			t.Errorf("got %v", errs)
		}
	})
}
