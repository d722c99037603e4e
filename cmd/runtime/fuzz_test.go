package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/launch"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// Every string of a fuzzed document contains mark, and no error may contain it. An error that quotes
// the document could write a key to a log, if the key is in the wrong field.
const mark = "zq9mark"

// A session document is accepted, or rejected with an error that does not quote the document. An
// accepted document does not change when it is written and read again, and its use does not panic.
func FuzzDocument(f *testing.F) {
	whole := session.Document{
		Conversation: "talk", Namespace: "default", UID: "u", PublicKey: []byte{1, 2},
		Settings: v1alpha1.UserSettingsSpec{LLMModel: ptr.To("openai/small"), MaxIterations: ptr.To(int32(7)),
			LLMAPIKeyRef: &v1alpha1.SecretKeyRef{Name: "s", Key: "k"}},
		Agent: &session.Agent{
			Name: "a", Protocol: session.ProtocolACP, Command: []string{"agent", "--model={{.Model}}",
				"{{if .Resumed}}--resume{{end}}"},
			Env: map[string]string{"MESSAGE": "{{.MessageFile}}"},
		},
		Repository: &session.Repository{Name: "o/r", Provider: v1alpha1.GitHub, Branch: "main",
			TokenFile: session.ProviderTokenFile},
		Images:       []session.Image{{URL: "https://example.com/a.png"}, {Name: "0", MediaType: "image/png"}},
		FirstMessage: "hello",
		ToolServers: session.ToolServers{
			SSE: []session.RemoteServer{{URL: "https://a.example.com", APIKeyFile: "mcp.sse.0"}},
			Stdio: []session.StdioServer{{Name: "files", Command: "mcp-files", Args: []string{"--root"},
				Env: []session.EnvVar{{Name: "A", ValueFile: "mcp.stdio.0.0"}}}},
		},
		CustomSecrets: []session.CustomSecret{{Name: "TOKEN", ValueFile: "custom.0"}},
		IdleTimeout:   metav1.Duration{Duration: time.Minute},
	}
	text, err := json.Marshal(whole)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(text), `{}`, `null`, `[]`, `{`, ``, `"x"`, `{"idleTimeout":"soon"}`, `{"idleTimeout":5}`,
		`{"startDeadline":null,"images":[{}]}`,
		`{"settings":{"maxIterations":"x"}}`, `{"agent":{"name":"a","command":["{{.Model","{{range .Images}}"]}}`,
		`{"publicKey":"%%"}`,
		`{"models":{"m":{"input":"x"}}}`, `{"repository":null,"toolServers":{"stdio":[null]}}`,
		`{"settings":{"secretsStore":{"customSecrets":[{"name":5}]}}}`,
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	env := environment{home: dir, workspace: dir, imagesDir: dir, replayDir: dir}
	f.Fuzz(func(t *testing.T, content []byte) {
		content = marked(content)
		if err := os.WriteFile(filepath.Join(dir, session.DocumentFile), content, 0o600); err != nil {
			t.Fatal(err)
		}
		doc, err := readDocument(dir, "")
		if err != nil {
			if strings.Contains(err.Error(), mark) {
				t.Errorf("%s is repeated in %v", content, err)
			}
			return
		}
		again := roundTrip(t, doc)
		if !reflect.DeepEqual(doc, again) && !reflect.DeepEqual(again, roundTrip(t, again)) {
			t.Errorf("%s became %+v and then %+v", content, doc, again)
		}
		_ = doc.HasWork()
		input, err := agentInput(env, doc, &workspace.Workspace{Dir: dir}, "http://127.0.0.1:1")
		if err != nil {
			t.Fatalf("%s: %v", content, err)
		}
		if driver.HasAgent(doc) {
			_, _, _ = launch.Render(doc.Agent, input, nil)
		}
	})
}

func roundTrip(t *testing.T, doc *session.Document) *session.Document {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatalf("the document cannot be encoded: %v", err)
	}
	var again session.Document
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatalf("%s cannot be read again: %v", text, err)
	}
	return &again
}

// marked adds the mark to each string value in a JSON text, but not to field names.
func marked(content []byte) []byte {
	var value any
	if json.Unmarshal(content, &value) != nil {
		return content
	}
	result, err := json.Marshal(mapTexts(value))
	if err != nil {
		return content
	}
	return result
}

func mapTexts(value any) any {
	switch value := value.(type) {
	case string:
		// Do not add the mark to a duration, because the mark would make it invalid.
		if _, err := time.ParseDuration(value); err == nil {
			return value
		}
		return value + mark
	case []any:
		for i := range value {
			value[i] = mapTexts(value[i])
		}
	case map[string]any:
		for name := range value {
			value[name] = mapTexts(value[name])
		}
	}
	return value
}
