package integration_test

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// Each secret has a unique value. The agent prints its environment and writes the custom secret to
// files.
func TestSecretsNeverAppearInEventsArchivesOrLogs(t *testing.T) {
	t.Parallel()
	canary := func() string { return "canary-" + strings.ToLower(rand.Text()) }
	model, search, sandbox, token, custom, tool := canary(), canary(), canary(), canary(), canary(), canary()
	ada := newPerson(t, map[string]any{
		"llm_api_key": model, "search_api_key": search, "sandbox_api_key": sandbox,
		"secrets_store": map[string]any{
			"provider_tokens": map[string]any{"github": map[string]any{"token": token}},
			"custom_secrets":  map[string]any{"DEPLOY_TOKEN": map[string]any{"secret": custom, "description": "for staging"}},
		},
		"mcp_config": map[string]any{"stdio_servers": []any{map[string]any{"name": "none", "command": "/nonexistent",
			"env": map[string]any{"TOOL_KEY": tool}}}},
	},
		says("I print it.", bash("env; echo $DEPLOY_TOKEN | tee -a file > $DEPLOY_TOKEN; echo $DEPLOY_TOKEN > made")),
		says("It was "+custom+"."))
	ada.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "print it"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	path := "/api/conversations/talk"
	lacks := func(where, text string) {
		t.Helper()
		for name, value := range map[string]string{"llm_api_key": model, "search_api_key": search, "sandbox_api_key": sandbox,
			"token": token, "custom secret": custom, "tool's key": tool, "session key": ada.key} {
			if strings.Contains(text, value) {
				t.Errorf("the %s is in %s", name, where)
			}
		}
	}
	look := func(when string, calls ...string) {
		t.Helper()
		for _, call := range calls {
			lacks(call+", "+when, ada.wants(t, 200, "GET", path+call, ""))
		}
	}
	look("while it runs", "", "/trajectory", "/events?limit=100", "/git/changes", "/git/diff?path=file",
		"/git/diff?path=made", "/list-files", "/select-file?file=made", "/config")
	ada.stop(t, "talk")
	testenv.Await(t, func() error {
		_, err := os.Stat(filepath.Join(archiveDir(), string(ada.conversation(t, "talk").UID), "ending.json"))
		return err
	})
	look("after its end", "", "/trajectory", "/events?limit=100", "/git/changes", "/git/diff?path=file")
	err := filepath.WalkDir(filepath.Join(archiveDir(), string(ada.conversation(t, "talk").UID)), func(file string,
		entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		lacks("the archive, "+filepath.Base(file), string(text))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	lacks("the facade's log", suite.facade.Log.String())
	lacks("the Conversation", jsonOf(t, ada.conversation(t, "talk")))
}
