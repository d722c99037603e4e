package rest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestNoTwoOwnersShareASecret(t *testing.T) {
	t.Parallel()
	hash := digest("x")
	endings := []string{
		llmKey, searchKey, sandboxKey, customKey + hash, settingsTools + hash, sessionTools + hash, "session", "session-key", "workspace",
		providerKey + "github", providerKey + "gitlab", providerKey + "bitbucket", providerKey + "enterprise-sso",
	}
	for _, a := range endings {
		for _, b := range endings {
			if strings.HasSuffix(a, "-"+b) {
				t.Errorf("<x>-%s may be both one's %q and another's %q", a, a, b)
			}
		}
	}
}

func TestErrorsOfTheAPIServerAreToldInTheRequestsTerms(t *testing.T) {
	t.Parallel()
	const value = `se"cret: x`
	path := field.NewPath("spec")
	for _, c := range []struct {
		name      string
		err       *field.Error
		loc       string
		kind, msg string
	}{
		{"a minimum", field.Invalid(path.Child("maxIterations"), int64(0), "spec.maxIterations in body should be greater than or equal to 1"),
			"body max_iterations", "greater_than_equal", "Input should be greater than or equal to 1"},
		{"a pattern", field.Invalid(path.Child("gitUserName"), value, "spec.gitUserName in body should match 'x'"),
			"body git_user_name", "string_pattern_mismatch", "Input should match 'x'"},
		{"a detail with the value", field.Invalid(path.Child("email"), value, "cannot parse "+value), "body email", "value_error", "Input is not allowed here"},
		{"no value", field.Invalid(path.Child("llmBaseURL"), field.OmitValueType{}, "must be a valid URL"), "body llm_base_url", "value_error", "must be a valid URL"},
		{"where a key belongs", field.Invalid(path.Child("llmBaseURL"), field.OmitValueType{}, "must not hold a key in its query: name a Secret in llmAPIKeyRef"),
			"body llm_base_url", "value_error", "must not hold a key in its query: send it as llm_api_key"},
		{"an enumeration", field.NotSupported(path.Child("gitProvider"), v1alpha1.GitProvider(value), []v1alpha1.GitProvider{"github"}),
			"body git_provider", "enum", `Input should be one of the supported values: "github"`},
		{"an object", field.Duplicate(path.Child("mcpConfig", "sseServers").Index(1), map[string]any{"url": value}), "body mcp_config sse_servers 1", "value_error", "An entry is listed twice"},
		{"a rule", field.Invalid(path.Child("initialUserMsg"), "object", "initialUserMsg must be absent when replayJSONRef is set"),
			"body initial_user_msg", "value_error", "initial_user_msg must be absent when replay_json is set"},
		{"a reference", field.Required(path.Child("llmAPIKeyRef", "name"), ""), "body llm_api_key", "missing", "Field required"},
		{"too long", field.TooLong(path.Child("agent"), value, 128), "body agent", "string_too_long", "String is too long: may not be more than 128 bytes"},
		{"too many", field.TooMany(path.Child("imageURLs"), 17, 16), "body image_urls", "too_long", "List is too long: must have at most 16 items"},
		{"an entry with a name", field.Invalid(path.Child("secretsStore", "customSecrets").Index(0).Child("name"), value, "should match"),
			"body secrets_store custom_secrets TOKEN name", "string_pattern_mismatch", "should match"},
		{"a variable", field.Invalid(path.Child("mcpConfig", "stdioServers").Index(2).Child("env").Index(3).Child("name"), value, "is bad"),
			"body mcp_config stdio_servers 2 env", "value_error", "is bad"},
		{"the name", field.Invalid(field.NewPath("metadata", "name"), value, "is bad"), "body conversation_id", "value_error", "is bad"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cause := metav1.StatusCause{Type: metav1.CauseType(c.err.Type), Field: c.err.Field, Message: c.err.ErrorBody()}
			details := invalidDetails([]metav1.StatusCause{cause}, func(string, int) string { return "TOKEN" })
			var loc []string
			for _, step := range details[0].Loc {
				loc = append(loc, strings.Trim(jsonOf(t, step), `"`))
			}
			if got := strings.Join(loc, " "); got != c.loc || details[0].Type != c.kind || details[0].Msg != c.msg {
				t.Errorf("told as %s %+v", got, details[0])
			}
			if strings.Contains(jsonOf(t, details), "cret: x") {
				t.Errorf("the value is repeated in %s", jsonOf(t, details))
			}
		})
	}
}

func TestWordsAreTakenApartAsByAShell(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                  ``,
		"  ":                ``,
		"a b":               `a|b`,
		" a\tb\nc ":         `a|b|c`,
		`'a b' "c d"`:       `a b|c d`,
		`a'b'"c"d`:          `abcd`,
		`'' ""`:             `|`,
		`a\ b \'`:           `a b|'`,
		`"a\"b\\c\d$X"`:     `a"b\c\d$X`,
		`'a\b'`:             `a\b`,
		`$HOME ~ * $(date)`: `$HOME|~|*|$(date)`,
		`--x="a b" ü`:       `--x=a b|ü`,
	} {
		words, ok := splitWords(line)
		if got := strings.Join(words, "|"); !ok || got != want {
			t.Errorf("%q is %q, want %q", line, got, want)
		}
	}
	for _, line := range []string{`'a`, `"a`, `a\`, `"a\"`} {
		if words, ok := splitWords(line); ok {
			t.Errorf("%q is taken for %q", line, words)
		}
	}
}

func TestAPageStaysWhereItIsWhenOthersComeAndGo(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	list := func(names ...string) (all []v1alpha1.Conversation) {
		for _, name := range names {
			all = append(all, v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: now}})
		}
		return all
	}
	first := page{limit: 2}.of(list("d", "b", "a", "c"))
	if got := first.Results[0].ConversationID + first.Results[1].ConversationID; got != "ab" {
		t.Fatalf("the first page is %s", got)
	}
	after, ok := parsePosition(*first.NextPageID)
	if !ok {
		t.Fatal("the page's id is not understood")
	}
	// b, where the page ended, is gone; aa came before it.
	second := page{limit: 2, after: after}.of(list("d", "a", "aa", "c"))
	if got := second.Results[0].ConversationID + second.Results[1].ConversationID; got != "cd" || second.NextPageID != nil {
		t.Errorf("the second page is %s", got)
	}
}

func TestATitleIsTheFirstLine(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		" hello \nworld":         "hello",
		strings.Repeat("ä", 101): strings.Repeat("ä", 99) + "…",
		strings.Repeat("ä", 100): strings.Repeat("ä", 100),
	} {
		if got := title(message); got != want {
			t.Errorf("%q is %q", message, got)
		}
	}
}

func TestWhoFailsOftenWaitsLongerAndLonger(t *testing.T) {
	t.Parallel()
	l := newLimits(1, 2)
	var waits []float64
	for range 6 {
		waits = append(waits, l.take("somebody", longestDelay).Round(100*time.Millisecond).Seconds())
	}
	if got := fmt.Sprint(waits); got != "[0 0 1 2 3 4]" {
		t.Errorf("the waits are %s", got)
	}
	if wait := l.take("somebody else", longestDelay); wait != 0 {
		t.Errorf("somebody else waits %s", wait)
	}
}
