package main_test

import (
	"crypto/ed25519"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

var facadeKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

func (p *pod) send(t *testing.T, event string) {
	t.Helper()
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceSession, UID: "u1",
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	if code := p.post(t, event, session.TokenHeader, token); code != http.StatusOK {
		t.Fatalf("%s is answered with %d", event, code)
	}
}

func (p *pod) answer(t *testing.T, state session.State) {
	t.Helper()
	p.send(t, `{"action":"change_agent_state","args":{"agent_state":"`+string(state)+`"}}`)
}

func says(text string) scriptedmodel.Step { return scriptedmodel.Step{Text: text} }
func calls(calls ...scriptedmodel.Call) scriptedmodel.Step {
	return scriptedmodel.Step{Calls: calls}
}

// asked returns a function that waits for the agent's question and answers it with this state.
func asked(state session.State) func(*testing.T, *pod) {
	return func(t *testing.T, p *pod) {
		t.Helper()
		eventually(t, "the agent asks", func() bool {
			lines := p.eventLines(t)
			if len(lines) > 0 && strings.Contains(lines[len(lines)-1], "agent_state_changed error") {
				t.Fatalf("the events are\n%s", strings.Join(lines, "\n"))
			}
			return len(lines) > 0 && strings.Contains(lines[len(lines)-1], string(session.StateConfirmation))
		})
		p.answer(t, state)
	}
}

// pixel is a PNG image of one pixel, in base64.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func imagesOf(request *scriptedmodel.Request) (images int) {
	for _, turn := range request.Turns {
		images += turn.Images
	}
	return images
}

// Each row has a setting and its effect on the agent, the model or the workspace.
func TestEachSettingHasItsEffect(t *testing.T) {
	const made = "echo made > made"
	const commits = "git config user.useConfigOnly true; git commit --allow-empty -m x && git log -1 --format='%an " +
		"<%ae> %cn <%ce>' > ../made"
	for name, c := range map[string]struct {
		change func(*session.Document)
		steps  []scriptedmodel.Step
		during func(*testing.T, *pod)
		ends   session.State
		// prompt contains texts that must be in the first model request. events contains texts that
		// must be in the journal. file is the expected content of the file "made".
		prompt, events []string
		file           string
		// requests and images are the expected numbers of model requests and images. The test does
		// not check a number that is 0.
		requests, images int
	}{
		"language": {
			change: func(d *session.Document) { d.Settings.Language = ptr.To("fr") }, steps: []scriptedmodel.Step{says("Oui.")},
			prompt: []string{"fr", "work"},
		},
		"conversation_instructions": {
			change: func(d *session.Document) { d.Instructions = "Be brief." }, steps: []scriptedmodel.Step{says("Yes.")},
			prompt: []string{"Be brief."},
		},
		"image_urls for a model that reads text only": {
			change: func(d *session.Document) {
				d.Images = []session.Image{{URL: "data:image/png;base64," + pixel}}
			},
			steps: []scriptedmodel.Step{{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.BadRequest,
				Message: "Invalid content type. image_url is only supported by certain models."}}, says("Done.")},
			events: []string{"notice  The model's provider refused images", "agent message  Done."}, requests: 2,
		},
		"image_urls": {
			change: func(d *session.Document) {
				d.Images = []session.Image{{URL: "data:image/png;base64," + pixel}, {URL: "data:image/png;base64,bm8="}}
			},
			steps: []scriptedmodel.Step{says("I see.")}, events: []string{"Image 2 of the message cannot be shown to the agent"},
			images: 1,
		},
		"custom secrets": {
			change: func(d *session.Document) {
				d.CustomSecrets = []session.CustomSecret{{Name: "DEPLOY", Description: "for staging", ValueFile: "custom.0"}}
			},
			steps:  []scriptedmodel.Step{calls(bash(`test -n "$DEPLOY" && ` + made)), says("Done.")},
			prompt: []string{"DEPLOY: for staging"}, file: "made\n",
		},
		"enable_solvability_analysis": {
			change: func(d *session.Document) { d.Task = true }, steps: []scriptedmodel.Step{says("It can be solved.")},
			prompt: []string{"whether you can solve it"},
			events: []string{"It can be solved."},
		},
		"email": {
			change: func(d *session.Document) {
				d.Settings.GitUserName, d.Settings.Email, d.Settings.EmailVerified = ptr.To("Ada"), ptr.To("ada@example.com"),
					ptr.To(true)
			},
			steps: []scriptedmodel.Step{calls(bash(`git config user.email > made; git config user.name >> made`)),
				says("Done.")}, file: "ada@example.com\nAda\n",
		},
		"llm_reasoning_effort and llm_temperature": {
			change: func(d *session.Document) {
				d.Settings.LLMReasoningEffort = ptr.To("low")
				d.Models = session.Models{"scripted/model": {ReasoningEffort: "high", Temperature: "0.5"}}
			},
			steps: []scriptedmodel.Step{{Text: "Done.", Check: func(r *scriptedmodel.Request) error {
				if raw := string(r.Raw); !strings.Contains(raw, `"reasoning_effort":"low"`) ||
					!strings.Contains(raw, `"temperature":0.5`) {
					return errors.New("the request lacks the effort of the settings or the default temperature of the model")
				}
				return nil
			}}},
			events: []string{"Done."},
		},
		"max_iterations": {
			change: func(d *session.Document) { d.Settings.MaxIterations = ptr.To[int32](2) },
			steps:  []scriptedmodel.Step{calls(bash(made)), calls(bash("true")), says("never")}, ends: session.StateError,
			events: []string{"max_iterations"}, file: "made\n", requests: 2,
		},
		"max_iterations by default": {
			steps: []scriptedmodel.Step{calls(bash("echo $PARLEY_MAX_ITERATIONS > made")), says("Done.")}, file: "500\n",
		},
		"a model that repeats itself": {
			steps: []scriptedmodel.Step{calls(bash(made)), calls(bash("true")), calls(bash("true")), calls(bash("true")),
				calls(bash("true")), says("never")},
			ends: session.StateError, events: []string{"The agent is stuck"}, file: "made\n", requests: 5,
		},
		"max_budget_per_task": {
			change: func(d *session.Document) {
				d.Settings.MaxBudgetPerTask = ptr.To("0.5")
				d.Models = session.Models{"scripted/model": {Input: "1000000", Output: "1000000"}}
			},
			steps: []scriptedmodel.Step{calls(bash("true")), says("never")}, ends: session.StateError,
			events: []string{"max_budget_per_task"}, requests: 1,
		},
		"max_budget_per_task without a price": {
			change: func(d *session.Document) { d.Settings.MaxBudgetPerTask = ptr.To("0.5") },
			steps:  []scriptedmodel.Step{says("never")}, ends: session.StateError,
			events: []string{"the model scripted/model has no price", "A call to the model failed: the call is refused"},
		},
		"confirmation_mode, confirmed": {
			change: func(d *session.Document) { d.Settings.ConfirmationMode = ptr.To(true) },
			steps:  []scriptedmodel.Step{calls(bash(made)), says("Done.")}, during: asked(session.StateConfirmed),
			file: "made\n",
		},
		"confirmation_mode, rejected": {
			change: func(d *session.Document) { d.Settings.ConfirmationMode = ptr.To(true) },
			steps:  []scriptedmodel.Step{calls(bash(made)), says("Then not.")}, during: asked(session.StateRejected),
			events: []string{"The user rejected this action."},
		},
		"security_analyzer llm": {
			change: func(d *session.Document) {
				d.Settings.ConfirmationMode, d.Settings.SecurityAnalyzer = ptr.To(true), ptr.To("llm")
			},
			steps: []scriptedmodel.Step{calls(bash(made)), says("Done.")}, file: "made\n",
		},
		"another security_analyzer": {
			change: func(d *session.Document) {
				d.Settings.ConfirmationMode, d.Settings.SecurityAnalyzer = ptr.To(true), ptr.To("invariant")
			},
			steps: []scriptedmodel.Step{calls(bash(made)), says("Done.")}, during: asked(session.StateConfirmed),
			events: []string{"invariant is unknown"}, file: "made\n",
		},
		"enable_default_condenser off": {
			change: func(d *session.Document) {
				d.Settings.EnableDefaultCondenser = ptr.To(false)
				d.Models = session.Models{"scripted/model": {ContextWindow: 4000}}
			},
			steps: []scriptedmodel.Step{{Calls: []scriptedmodel.Call{bash(made)}, Usage: &scriptedmodel.Usage{Input: 3900,
				Output: 50}}, says("never")}, ends: session.StateError,
			events: []string{"context is almost full"}, file: "made\n", requests: 1,
		},
		"enable_default_condenser on": {
			change: func(d *session.Document) {
				d.Settings.EnableDefaultCondenser = ptr.To(true)
				d.Models = session.Models{"scripted/model": {ContextWindow: 4000}}
			},
			steps: []scriptedmodel.Step{
				{Calls: []scriptedmodel.Call{bash(made + "; echo mar''ker; seq 800")},
					Usage: &scriptedmodel.Usage{Input: 3900, Output: 50}},
				{Text: "The file is made.", When: func(r *scriptedmodel.Request) bool {
					return len(r.Tools) == 0 && r.Contains("work") && r.Contains("execute_bash") && r.Contains("marker")
				}},
				{Text: "Done.", When: func(r *scriptedmodel.Request) bool {
					return len(r.Tools) > 0 && r.Contains("The file is made.") && !r.Contains("marker")
				}},
			},
			events: []string{"was summarised", "agent message  Done."}, file: "made\n", requests: 3,
		},
		"git_user_name and git_user_email": {
			change: func(d *session.Document) {
				d.Repository = &session.Repository{Name: repository(t)}
				d.Settings.GitUserName, d.Settings.GitUserEmail = ptr.To("Ada"), ptr.To("ada@example.com")
				d.Settings.Email, d.Settings.EmailVerified = ptr.To("other@example.com"), ptr.To(true)
			},
			steps: []scriptedmodel.Step{calls(bash(commits)), says("Done.")},
			file:  "Ada <ada@example.com> Ada <ada@example.com>\n",
		},
		"email without git_user_email": {
			change: func(d *session.Document) {
				d.Repository = &session.Repository{Name: repository(t)}
				d.Settings.GitUserName, d.Settings.Email, d.Settings.EmailVerified = ptr.To("Ada"), ptr.To("ada@example.com"),
					ptr.To(true)
			},
			steps: []scriptedmodel.Step{calls(bash(commits)), says("Done.")},
			file:  "Ada <ada@example.com> Ada <ada@example.com>\n",
		},
		"unverified email": {
			change: func(d *session.Document) {
				d.Repository = &session.Repository{Name: repository(t)}
				d.Settings.GitUserName, d.Settings.Email, d.Settings.EmailVerified = ptr.To("Ada"), ptr.To("ada@example.com"),
					ptr.To(false)
			},
			// git refuses to commit without an email address.
			steps: []scriptedmodel.Step{calls(bash(commits)), says("I cannot.")}, events: []string{"user.email"},
		},
		"create_microagent": {
			change: func(d *session.Document) {
				d.Repository = &session.Repository{Name: repository(t)}
				d.FirstMessage = session.FirstMessage(&v1alpha1.ConversationSpec{
					CreateMicroagent: &v1alpha1.CreateMicroagent{Repo: "acme/site", Title: ptr.To("releases")},
				})
			},
			steps: []scriptedmodel.Step{
				calls(bash("mkdir -p .openhands/microagents && echo how > .openhands/microagents/releases.md && cp " +
					".openhands/microagents/releases.md ../made")), says("Done."),
			},
			prompt: []string{"microagent", "acme/site", "releases", ".openhands/microagents/"}, file: "how\n",
		},
		"search_api_key without a tool": {
			change: func(d *session.Document) { d.SearchUnavailable = true }, steps: []scriptedmodel.Step{says("Done.")},
			events: []string{"search_api_key"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, model := scripted(t, c.change, c.steps...)
			p.start(t)
			if c.during != nil {
				c.during(t, p)
			}
			ends := c.ends
			if ends == "" {
				ends = session.StateAwaiting
			}
			eventually(t, "the turn ends as "+string(ends), func() bool {
				lines := p.eventLines(t)
				return len(lines) > 0 && strings.Contains(lines[len(lines)-1], "agent_state_changed "+string(ends))
			})
			journal := strings.Join(p.eventLines(t), "\n")
			for _, words := range c.events {
				if !strings.Contains(journal, words) {
					t.Errorf("no event says %q:\n%s", words, journal)
				}
			}
			requests := model.Requests()
			for _, words := range c.prompt {
				if len(requests) == 0 || !requests[0].Contains(words) {
					t.Errorf("the model did not get %q", words)
				}
			}
			if c.requests > 0 && len(requests) != c.requests {
				t.Errorf("the model got %d requests, want %d", len(requests), c.requests)
			}
			if c.images > 0 && (len(requests) == 0 || imagesOf(requests[0]) != c.images) {
				t.Errorf("the model did not get %d images", c.images)
			}
			if got := p.file("made"); got != c.file {
				t.Errorf("made is %q, want %q", got, c.file)
			}
			if violations := model.Violations(); len(violations) > 0 {
				t.Errorf("the model refused: %q", violations)
			}
		})
	}
}
