package main_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// keyedModel is a scripted model that refuses requests without its key.
type keyedModel struct {
	*scriptedmodel.Server
	url     string
	key     atomic.Pointer[string]
	refused atomic.Int32
}

func newKeyedModel(t *testing.T, key string, steps ...scriptedmodel.Step) *keyedModel {
	t.Helper()
	m := &keyedModel{Server: scriptedmodel.New(scriptedmodel.Script{Steps: steps})}
	m.key.Store(&key)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*m.key.Load() {
			m.refused.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}`))
			return
		}
		m.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

// modelPod returns a session with Parley's agent, this model and an archive.
func modelPod(t *testing.T, model *keyedModel, change func(*session.Document)) *scratchPod {
	t.Helper()
	on, _ := scripted(t, func(d *session.Document) {
		d.Settings.LLMBaseURL = &model.url
		if change != nil {
			change(d)
		}
	})
	return onScratch(t, on)
}

// change() stores changed model settings in the archive, like the manager.
func (p *scratchPod) change(t *testing.T, settings session.ModelSettings) {
	t.Helper()
	sealed, err := session.SealModel(secretValues[session.KeyFile], p.doc.UID, settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.store.SetModel(t.Context(), p.doc.UID, sealed); err != nil {
		t.Fatal(err)
	}
}

func (p *scratchPod) message(t *testing.T, text string) {
	t.Helper()
	p.send(t, `{"action":"message","args":{"content":"`+text+`"}}`)
}

func (p *scratchPod) awaitTurns(t *testing.T, turns int, state session.State) {
	t.Helper()
	eventually(t, "the turn ends as "+string(state), func() bool {
		return strings.Count(strings.Join(p.eventLines(t), "\n"), "agent_state_changed "+string(state)) == turns
	})
}

// awaitOutcome waits until the archived outcome of the last turn has this reason. If the reason is
// empty, it waits until the archive has no outcome.
func (p *scratchPod) awaitOutcome(t *testing.T, reason string) {
	t.Helper()
	eventually(t, "the outcome is "+reason, func() bool {
		list, _, err := p.store.Turns(t.Context(), "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Turns) == 0 {
			return reason == ""
		}
		return list.Turns[0].Turn.Reason == reason
	})
}

func (p *scratchPod) modelUsage(t *testing.T) (usage modelproxy.Usage) {
	t.Helper()
	if err := json.Unmarshal([]byte(p.file(".parley/usage.json")), &usage); err != nil {
		t.Fatal(err)
	}
	return usage
}

// wantsNowhere checks that the secret is not in the workspace, in the archive or in the output.
func (p *scratchPod) wantsNowhere(t *testing.T, secret string) {
	t.Helper()
	for _, root := range []string{p.workspace, p.dir, p.home} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return nil //nolint:nilerr // the session removes files at the same time
			}
			if text, _ := os.ReadFile(path); strings.Contains(string(text), secret) {
				t.Errorf("%s has the key", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(p.output(), secret) {
		t.Error("the key was printed")
	}
}

func TestAChangedModelAnswersTheNextMessage(t *testing.T) {
	t.Parallel()
	const key = "sk-second-0123456789"
	first := newKeyedModel(t, secretValues[session.LLMAPIKeyFile], says("I am the first."))
	second := newKeyedModel(t, key, calls(bash("echo "+key+" | tee made")), says("I am the second, with "+key+"."),
		says("Still the second."))
	p := modelPod(t, first, func(d *session.Document) {
		d.Models = session.Models{"second/other": {Input: "2", Output: "4"}}
	})
	p.begin(t)
	p.awaitTurns(t, 1, session.StateAwaiting)
	p.change(t, session.ModelSettings{Revision: "r2", Model: "second/other", BaseURL: second.url, Key: key + "\n"})
	p.message(t, "again")
	p.awaitTurns(t, 2, session.StateAwaiting)
	if got := len(first.Requests()); got != 1 {
		t.Errorf("the first model got %d requests", got)
	}
	requests := second.Requests()
	if len(requests) != 2 || second.refused.Load() != 0 {
		t.Fatalf("the second model got %d requests and refused %d", len(requests), second.refused.Load())
	}
	if r := requests[0]; r.Model != "other" || !r.Contains("I am the first.") || !r.Contains("again") {
		t.Errorf("the second model %s was told %s", r.Model, r.Said())
	}
	p.wantsNotice(t, "The model is now second/other.")
	// Each of the 3 calls has 10 input and 5 output tokens. Only the second model has a price. It
	// answered the last 2 calls.
	if got := p.modelUsage(t); got.Session.Calls != 3 || got.Session.Input != 30 || got.Session.Output != 15 ||
		got.Session.Cost.String() != "0.00008" {
		t.Errorf("the usage is %+v", got)
	}
	// After a restart, the session still uses the changed model and does not announce it again.
	p.killSession(t)
	p.start(t)
	p.waitReady(t)
	p.message(t, "and now?")
	p.awaitTurns(t, 3, session.StateAwaiting)
	if got := len(second.Requests()); got != 3 {
		t.Errorf("after the restart the second model has %d requests", got)
	}
	if all := strings.Join(p.notices(t), "\n"); strings.Count(all, "The model is now") != 1 {
		t.Errorf("the notices are\n%s", all)
	}
	// A command of the agent wrote the key into this file. Keys are masked in events and in the
	// output, but not in the agent's files.
	if got := p.file("made"); got != key+"\n" {
		t.Errorf("made is %q", got)
	}
	if err := os.Remove(filepath.Join(p.workspace, "made")); err != nil {
		t.Fatal(err)
	}
	for _, line := range p.eventLines(t) {
		if strings.Contains(line, key) {
			t.Errorf("the journal has the key: %s", line)
		}
	}
	if strings.Contains(p.output(), key) {
		t.Error("the key was printed")
	}
}

func TestTheAgentKeepsRunningAfterTheModelKeyIsCorrected(t *testing.T) {
	t.Parallel()
	const key = "sk-rotated-0123456789"
	model := newKeyedModel(t, secretValues[session.LLMAPIKeyFile], calls(bash("sleep 300 & echo $! > background")),
		says("It runs."), says("It works again."))
	p := modelPod(t, model, nil)
	p.begin(t)
	p.awaitTurns(t, 1, session.StateAwaiting)
	background := processOf(t, filepath.Join(p.workspace, "background"))
	rotated := key
	model.key.Store(&rotated)
	p.message(t, "again")
	p.awaitTurns(t, 1, session.StateError)
	p.awaitOutcome(t, v1alpha1.ReasonModelRefusedKey)
	p.change(t, session.ModelSettings{Revision: "r2", Model: "scripted/model", BaseURL: model.url, Key: key})
	p.message(t, "and again")
	p.awaitTurns(t, 2, session.StateAwaiting)
	p.awaitOutcome(t, "")
	if gone(background) {
		t.Error("a running process ended with the change of the key")
	}
	p.wantsNotice(t, "The endpoint or the API key of the model changed.")
	p.stop(t)
	p.wantsNowhere(t, key)
}

func TestTheArchivedFailureIsClearedAfterAModelIsSet(t *testing.T) {
	t.Parallel()
	model := newKeyedModel(t, secretValues[session.LLMAPIKeyFile], says("Hello."), says("And hello."))
	p := modelPod(t, model, func(d *session.Document) { d.Settings.LLMModel, d.Agent.NeedsModel = nil, true })
	p.begin(t)
	p.awaitTurns(t, 1, session.StateError)
	p.awaitOutcome(t, v1alpha1.ReasonNoModel)
	p.change(t, session.ModelSettings{Revision: "r2", Model: "scripted/model", BaseURL: model.url,
		Key: secretValues[session.LLMAPIKeyFile]})
	p.message(t, "again")
	eventually(t, "the model answers", func() bool {
		return strings.Contains(strings.Join(p.eventLines(t), "\n"), "Hello.")
	})
	p.awaitOutcome(t, "")
}

func TestASessionKeepsItsModelIfTheChangedModelCannotBeRead(t *testing.T) {
	t.Parallel()
	other := newKeyedModel(t, "sk-other-0123456789", says("I am another."))
	changed := session.ModelSettings{Revision: "r2", Model: "other/model", BaseURL: other.url, Key: "sk-other-0123456789"}
	for name, prevent := range map[string]func(*testing.T, *scratchPod){
		"the archive does not answer": func(t *testing.T, p *scratchPod) {
			p.change(t, changed)
			p.away.Store(true)
		},
		"an older archive": func(_ *testing.T, p *scratchPod) {
			missing := func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, session.ArchiveModel) {
					return false
				}
				w.WriteHeader(http.StatusNotFound)
				return true
			}
			p.intercept.Store(&missing)
		},
		"the model of an earlier start": func(t *testing.T, p *scratchPod) {
			sealed, err := session.SealModel("the key of another start", p.doc.UID, changed)
			if err == nil {
				err = p.store.SetModel(t.Context(), p.doc.UID, sealed)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"only the version of the Secret changed": func(t *testing.T, p *scratchPod) {
			p.change(t, session.ModelSettings{Revision: "r2", Model: *p.doc.Settings.LLMModel,
				BaseURL: *p.doc.Settings.LLMBaseURL, Key: secretValues[session.LLMAPIKeyFile] + "\n"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := newKeyedModel(t, secretValues[session.LLMAPIKeyFile], says("One."), says("Two."))
			p := modelPod(t, first, nil)
			p.begin(t)
			p.awaitTurns(t, 1, session.StateAwaiting)
			prevent(t, p)
			p.message(t, "again")
			p.awaitTurns(t, 2, session.StateAwaiting)
			if got := len(first.Requests()); got != 2 || len(other.Requests()) != 0 {
				t.Errorf("the first model has %d requests, the other one %d", got, len(other.Requests()))
			}
			if all := p.notices(t); len(all) != 0 {
				t.Errorf("the notices are %q", all)
			}
		})
	}
}

// connections is an HTTP proxy that records the requested hosts and refuses every connection.
type connections struct {
	mu    sync.Mutex
	hosts []string
}

func (c *connections) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = append(c.hosts, r.Host)
	w.WriteHeader(http.StatusForbidden)
}

func TestAModelWithoutAProviderPrefixIsRequestedOnlyFromItsProvider(t *testing.T) {
	for _, c := range []struct {
		model, qualified, host string
		status                 int
	}{
		{"claude-opus-4-5", "anthropic/claude-opus-4-5", "api.anthropic.com:443", http.StatusBadGateway},
		{"gpt-4o", "openai/gpt-4o", "api.openai.com:443", http.StatusBadGateway},
		{"mystery", "mystery", "", http.StatusBadRequest},
	} {
		t.Run(c.model, func(t *testing.T) {
			proxy := &connections{}
			server := httptest.NewServer(proxy)
			defer server.Close()
			p := newPod(t, session.Document{Settings: v1alpha1.UserSettingsSpec{LLMModel: &c.model}, FirstMessage: "go",
				Agent: showing()})
			p.image, p.variables = []string{"HTTPS_PROXY=" + server.URL}, []string{"HTTPS_PROXY"}
			p.start(t)
			if got := p.callModel(t); got != c.status {
				t.Errorf("the call is answered with %d", got)
			}
			if got := p.agentVariable(t, "LLM_MODEL"); got != c.qualified {
				t.Errorf("the agent has the model %q", got)
			}
			proxy.mu.Lock()
			defer proxy.mu.Unlock()
			if got := strings.Join(proxy.hosts, " "); got != c.host {
				t.Errorf("the session connected to %q", got)
			}
		})
	}
}

func TestPrintedSecretsReachTheModelOnlyIfTheSettingsExposeThem(t *testing.T) {
	t.Parallel()
	for _, exposed := range []bool{false, true} {
		t.Run(fmt.Sprint(exposed), func(t *testing.T) {
			t.Parallel()
			p, model := scripted(t, func(d *session.Document) {
				d.CustomSecrets = []session.CustomSecret{{Name: "DEPLOY", ValueFile: "custom.0"}}
				d.Repository = &session.Repository{Name: repository(t), Provider: v1alpha1.GitHub,
					TokenFile: session.ProviderTokenFile}
				d.Settings.ExposeGitTokenToAgent = new(true)
				if exposed {
					d.Settings.ExposeSecretsToModel = &exposed
				}
			}, calls(bash(`echo "printed $DEPLOY"; printf %s "$GITHUB_TOKEN" | base64; printenv GITHUB_TOKEN`)), says("Done."))
			p.start(t)
			eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
			last := model.Requests()[len(model.Requests())-1]
			if !last.Contains("printed ") {
				t.Fatalf("the model did not get the output: %s", last.Said())
			}
			token := secretValues[session.ProviderTokenFile]
			for _, secret := range []string{secretValues["custom.0"], token, base64.StdEncoding.EncodeToString([]byte(token))} {
				if last.Contains(secret) != exposed {
					t.Errorf("the model got %s: %t", secret, !exposed)
				}
			}
		})
	}
}
