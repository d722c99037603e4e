package secrets_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

const secret = `sk-"A1/b2+c3<d4>'`

func TestSecretsAreRemovedFromTheEnvironmentOfTheRuntime(t *testing.T) {
	for key, value := range map[string]string{session.LLMAPIKeyFile: "sk-123456\n", "custom.0": " a b \n",
		"mcp.stdio.0.1": "x=y"} {
		t.Setenv(session.SecretVariable(key), value)
	}
	t.Setenv("PARLEY_OTHER", "stays")
	store, err := secrets.Take(&session.Document{})
	if err != nil {
		t.Fatal(err)
	}
	if got := store.Key(session.LLMAPIKeyFile); got != "sk-123456" {
		t.Errorf("the key is %q", got)
	}
	if got := store.Value("custom.0"); got != " a b \n" {
		t.Errorf("the custom secret is %q", got)
	}
	if got := store.Value("mcp.stdio.0.1") + store.Value("mcp.stdio.0.2"); got != "x=y" {
		t.Errorf("the variable of a server is %q", got)
	}
	if got := store.Mask("sk-123456 of team"); got != "*** of team" {
		t.Errorf("masked: %q", got)
	}
	environment := strings.Join(os.Environ(), "\n")
	if strings.Contains(environment, session.SecretVariables) || strings.Contains(environment, "sk-123456") ||
		!strings.Contains(environment, "PARLEY_OTHER=stays") {
		t.Errorf("the environment is\n%s", environment)
	}
}

func TestASecretIsMaskedInEveryPrintedForm(t *testing.T) {
	store := secrets.New(map[string]string{"key": secret + "\n", "pin": "123", "empty": ""})
	quoted, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	for form, text := range map[string]string{
		"as it is":             secret,
		"quoted":               string(quoted),
		"quoted by others":     `"sk-\"A1/b2+c3<d4>'"`,
		"in a query":           url.QueryEscape(secret),
		"in a path":            url.PathEscape(secret),
		"in base64":            base64.StdEncoding.EncodeToString([]byte(secret)),
		"in base64 of echo":    base64.StdEncoding.EncodeToString([]byte(secret + "\n")),
		"in base64 for URLs":   base64.URLEncoding.EncodeToString([]byte(secret)),
		"in base64, unpadded":  base64.RawURLEncoding.EncodeToString([]byte(secret)),
		"in basic credentials": base64.StdEncoding.EncodeToString([]byte("user:" + secret)),
		"after two bytes":      base64.StdEncoding.EncodeToString([]byte("u:" + secret + ":more")),
		"after four bytes":     base64.StdEncoding.EncodeToString([]byte("usr:" + secret + "x")),
	} {
		t.Run(form, func(t *testing.T) {
			got := store.Mask("before " + text + " after")
			if !strings.Contains(got, "***") || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("got %q", got)
			}
			// In base64, a few characters encode bytes of the secret together with neighbouring bytes. These
			// characters remain.
			if left := len(got) - len("before *** after"); left > 14 {
				t.Errorf("too much is left: %q", got)
			}
		})
	}
	if got := store.Mask("pin 123"); got != "pin 123" {
		t.Errorf("a value too short to mask became %q", got)
	}
}

func TestASecretIsMaskedInEveryURLForm(t *testing.T) {
	const value = `p w+/:@&=$,;?#%"(ä)!~*'`
	store := secrets.New(map[string]string{"key": value})
	lower := regexp.MustCompile("%[0-9A-F]{2}")
	for form, text := range map[string]string{
		"in a query":                 url.QueryEscape(value),
		"in a query without a plus":  strings.ReplaceAll(url.QueryEscape(value), "+", "%20"),
		"in a path":                  url.PathEscape(value),
		"as Python quotes it":        strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(value)),
		"as encodeURIComponent does": `p%20w%2B%2F%3A%40%26%3D%24%2C%3B%3F%23%25%22(%C3%A4)!~*'`,
		"as a password":              strings.TrimPrefix(url.UserPassword("user", value).String(), "user:"),
	} {
		for _, text := range []string{text, lower.ReplaceAllStringFunc(text, strings.ToLower)} {
			if got := store.Mask("before " + text + " after"); got != "before *** after" {
				t.Errorf("%s, %s became %q", form, text, got)
			}
		}
	}
}

func TestALongSecretIsMaskedInWrappedBase64(t *testing.T) {
	value := strings.Repeat("0123456789abcdef-", 12)
	store := secrets.New(map[string]string{"key": value})
	text := base64.StdEncoding.EncodeToString([]byte(value))
	var wrapped strings.Builder
	for len(text) > 76 {
		wrapped.WriteString(text[:76] + "\n")
		text = text[76:]
	}
	wrapped.WriteString(text + "\n")
	var out bytes.Buffer
	fmt.Fprint(store.Output(&out).Lines(""), wrapped.String())
	if strings.Trim(out.String(), "*\n") != "" {
		t.Errorf("got %q", out.String())
	}
}

func TestAMultilineSecretIsMaskedLineByLine(t *testing.T) {
	store := secrets.New(map[string]string{"key": "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----\n"})
	var out bytes.Buffer
	fmt.Fprint(store.Output(&out).Lines(""), "-----BEGIN KEY-----\nabcdefghijkl\n", "mnopqrstuvwx\n-----END KEY-----\n")
	if got := out.String(); got != "***\n***\n***\n***\n" {
		t.Errorf("got %q", got)
	}
}

func TestASecretSplitAcrossWritesIsMasked(t *testing.T) {
	store := secrets.New(map[string]string{"key": "very-secret-value"})
	var out bytes.Buffer
	lines := store.Output(&out).Lines("a")
	for _, c := range []byte("x very-secret-value y\nlast very-secret-value") {
		if _, err := lines.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); got != "[a] x *** y\n" {
		t.Errorf("before the end: %q", got)
	}
	if err := lines.Close(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "[a] x *** y\n[a] last ***\n" {
		t.Errorf("got %q", got)
	}
}

func TestAnEndlessLineIsNotBufferedForever(t *testing.T) {
	store := secrets.New(map[string]string{"key": "very-secret-value"})
	var out bytes.Buffer
	lines := store.Output(&out).Lines("")
	// The lengths vary, so some secrets lie across the position at which a line is cut.
	for length := range 2000 {
		fmt.Fprint(lines, strings.Repeat("x", length%97)+"very-secret-value")
	}
	if out.Len() == 0 {
		t.Fatal("nothing was written")
	}
	if err := lines.Close(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(strings.ReplaceAll(got, "\n", ""), "secret") || strings.Count(got,
		"***") < 1990 {
		t.Errorf("the output has a secret or lost a mask: %d masks", strings.Count(got, "***"))
	}
}

func TestPlainWordsInVariablesOfToolServersAreNotMasked(t *testing.T) {
	for name, c := range map[string]struct {
		variable, value string
		masked          bool
	}{
		"a word":                          {"NODE_ENV", "production", false},
		"a word in capitals":              {"LOG_LEVEL", "DEBUG", false},
		"a word with a line break":        {"MODE", "production\n", false},
		"a word where a key is expected":  {"DB_PASSWORD", "postgres", true},
		"the same in lower case":          {"apiKey", "postgres", true},
		"a word with a digit":             {"MODE", "production1", true},
		"letters in mixed case":           {"MODE", "proDuctIon", true},
		"too long for a word":             {"MODE", "abcdefghijklmnopq", true},
		"a URL, which may have a key":     {"DATABASE", "postgres://ada:secret@db/", true},
		"a text that looks like a key":    {"MODE", "ghp_0123456789abcdef", true},
		"a word that is a custom secret":  {"", "production", true},
		"a word of a variable with a key": {"SENTRY_AUTH", "production", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(session.SecretVariable("value"), c.value)
			doc := &session.Document{}
			if c.variable != "" {
				doc.ToolServers.Stdio = []session.StdioServer{{Env: []session.EnvVar{{Name: c.variable, ValueFile: "value"}}}}
			}
			store, err := secrets.Take(doc)
			if err != nil {
				t.Fatal(err)
			}
			if got := store.Value("value"); got != c.value {
				t.Errorf("the value is %q", got)
			}
			if got := store.Mask(strings.TrimSpace(c.value)) == "***"; got != c.masked {
				t.Errorf("masked: %t", got)
			}
		})
	}
}

func TestATokenAndItsPasswordPartAreMasked(t *testing.T) {
	store := secrets.New(map[string]string{session.ProviderTokenFile: "ada:app+password", "custom.0": "other:word"})
	for text, want := range map[string]string{
		"ada:app+password": "***", "app+password": "***", "app%2Bpassword": "***",
		base64.StdEncoding.EncodeToString([]byte("app+password")): "***",
		"ada": "ada", "word": "word",
	} {
		if got := store.Mask(text); got != want {
			t.Errorf("%s became %q", text, got)
		}
	}
}

func TestAnAddedSecretIsMaskedLikeTheOthers(t *testing.T) {
	store := secrets.New(map[string]string{session.LLMAPIKeyFile: "sk-old-0123456789"})
	var out strings.Builder
	mask, lines := store.Mask, store.Output(&out).Lines("") // before the secret is added
	store.Add("sk-new-0123456789\n")
	const text = "sk-old-0123456789 sk-new-0123456789 " + "c2stbmV3LTAxMjM0NTY3ODk=\n" // the new key in base64
	if got := mask(text); got != "*** *** ***\n" {
		t.Errorf("masked: %q", got)
	}
	if _, err := lines.Write([]byte(text)); err != nil || out.String() != "*** *** ***\n" {
		t.Errorf("printed: %q, %v", out.String(), err)
	}
	out.Reset()
	stream := store.Stream(&out)
	_, _ = stream.Write([]byte("sk-new-01234"))
	_, _ = stream.Write([]byte("56789 sk-old-0123456789"))
	if err := stream.Close(); err != nil || out.String() != "*** ***" {
		t.Errorf("streamed: %q, %v", out.String(), err)
	}
	store.Add("")
	if got := mask("plain text"); got != "plain text" {
		t.Errorf("after an empty secret: %q", got)
	}
}
