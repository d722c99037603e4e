package webhook

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// fakeKey looks like a key, but gives access to nothing.
const fakeKey = "0fake1fake2fake3fake4fake5"

func argsWarnings(args []string) []string {
	f := &findings{}
	f.warnOfLiteralKeys(field.NewPath("server"), v1alpha1.MCPStdioServer{Name: "a", Args: args},
		maxGuessed)
	return f.warnings
}

func TestArgumentsThatLookLikeKeysCauseWarnings(t *testing.T) {
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
		{"pg://ada:hunter2@db.example.com"},
		{"--url=https://example.com/mcp?v=1&api_key=hunter2"},
	} {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			if len(argsWarnings(line)) != 1 {
				t.Error("should cause a warning")
			}
		})
	}
}

func TestOrdinaryArgumentsCauseNoWarnings(t *testing.T) {
	for _, line := range [][]string{
		nil,
		{""},
		{"--root", "/workspace"},
		{"--port", "8080"},
		{"--token-limit=100"},
		{"--max-tokens", "100"},
		{"--tokenizer", "gpt2"},
		{"--keyboard", "de"},
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
		{"run", "sk-learn-notebook-server"},
		{"--header", "Authorization: Bearer $TOKEN"},
		{"--header", "Authorization:${AUTH_HEADER}"},
		{"-c", `exec server --token "$TOKEN"`},
		{"-c", "exec server --token $(cat /run/token) --port 8080"},
		{"postgresql://ada:$PASSWORD@db.example.com/db"},
		{"postgresql://ada@db.example.com/db"},
		{"https://example.com/mcp?page=2&token=${TOKEN}"},
		{"https://example.com/key=/a@b:c"},
		{"-y", "@modelcontextprotocol/server-filesystem@1.0.0", "/workspace"},
		{"git+https://example.com/o/r@0123456789abcdef0123456789abcdef01234567"},
		{"sha256:" + strings.Repeat("0a", 32)},
	} {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			if warnings := argsWarnings(line); len(warnings) > 0 {
				t.Errorf("should be accepted without a warning: %s", warnings)
			}
		})
	}
}

// The check can only guess whether an argument is a key. For these arguments it guesses wrong. The
// user then gets a warning, but the object is accepted.
func TestSomeHarmlessArgumentsAreMistakenForKeys(t *testing.T) {
	for _, line := range [][]string{
		{"-e", "GITHUB_TOKEN", "example.com/image"},
		{"--max-token", "100"},
		{"--sort-key", "name"},
		{"--public-key", "ssh-ed25519"},
		{"--label", "key=value"},
		{"--credentials", "credentials.json"},
		{"--require-token", "true"},
		{"--require-token=yes"},
		{"--no-password", "db"},
		{"--scope", "token:read"},
		{"--prompt", "Bearers of a key: they open doors. The secret is patience."},
	} {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			if len(argsWarnings(line)) != 1 {
				t.Error("the check became better: move this line to the ordinary arguments")
			}
		})
	}
}

func TestLiteralKeysOfToolServersCauseWarnings(t *testing.T) {
	const (
		inArgs = "spec.mcpConfig.stdioServers[1].args: may contain a key that all readers of this object can see: " +
			"store it in a Secret and use secretRef in env"
		inValue = "spec.mcpConfig.stdioServers[0].env[1].value: may contain a key that all readers of this object can see: " +
			"store it in a Secret and use secretRef"
	)
	servers := func(args ...string) string {
		list, err := json.Marshal(slices.Concat([]string{"--root", "/workspace"}, args))
		if err != nil {
			t.Fatal(err)
		}
		return "stdioServers: [{name: a, command: a, args: [--port, '8080']}, {name: b, command: b, args: " +
			string(list) + "}]"
	}
	variable := func(name, value string) string {
		return "stdioServers: [{name: a, command: a, env: [{name: LEVEL, value: debug}, {name: " + name +
			", value: '" + value + "'}]}]"
	}
	for _, kind := range []string{"UserSettings", "Conversation"} {
		namespace := env.Namespace(t, nil)
		settings := object(t, "UserSettings", namespace, "{}")
		settings.SetName("default")
		mustCreate(t, settings)
		for name, c := range map[string]struct{ tools, warning string }{
			"ordinary arguments":                          {servers("--token-limit=100"), ""},
			"a reference":                                 {servers("--token", "$TOKEN"), ""},
			"a key, recognized by its flag":               {servers("--token", "hunter2"), inArgs},
			"a key, recognized by its prefix":             {servers("sk-" + fakeKey), inArgs},
			"a header":                                    {servers("--header", "Authorization: Bearer hunter2"), inArgs},
			"several keys in one list":                    {servers("--token", "hunter2", "--api-key=hunter2"), inArgs},
			"an ordinary value":                           {variable("MAX_TOKENS", "100"), ""},
			"a file with the key":                         {variable("API_KEY", "/run/keys/api"), ""},
			"an empty value":                              {variable("API_KEY", ""), ""},
			"a key, recognized by the variable's name":    {variable("API_KEY", "hunter2"), inValue},
			"a header, recognized by the variable's name": {variable("AUTHORIZATION", "Bearer hunter2"), inValue},
			"a value, recognized by its prefix":           {variable("LOGIN", "sk-"+fakeKey), inValue},
			"a password in a URL":                         {variable("DB", "pg://ada:hunter2@db.example.com"), inValue},
		} {
			t.Run(kind+" with "+name, func(t *testing.T) {
				t.Parallel()
				root := admin(t)
				expectAccepted(t, root.create(t, object(t, kind, namespace, "mcpConfig: {"+c.tools+"}")))
				expectWarnings(t, root, slices.DeleteFunc([]string{c.warning}, func(w string) bool { return w == "" })...)
			})
		}
	}
}
