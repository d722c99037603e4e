package session_test

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestACatalogueIsReadFromYAMLAndJSON(t *testing.T) {
	catalogue, err := session.ParseCatalogue(map[string]string{
		"CodeActAgent": "",
		"shell": "image: debian:stable\ncommand: [sh, -c, 'cat {{.MessageFile}}']\nenv: {KEY: '{{env " +
			"\"LLM_API_KEY\"}}'}\n",
		"other": `{"name": "other", "command": ["other", "--turns={{.MaxIterations}}"]}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	got, want := slices.Sorted(maps.Keys(catalogue)), []string{"CodeActAgent", "other", "shell"}
	if !slices.Equal(got, want) {
		t.Errorf("names are %q, want %q", got, want)
	}
	shell := catalogue["shell"]
	if shell.Name != "shell" || shell.Image != "debian:stable" || len(shell.Command) != 3 {
		t.Errorf("shell is %+v", shell)
	}
	if len(catalogue["CodeActAgent"].Command) != 0 {
		t.Errorf("CodeActAgent is %+v", catalogue["CodeActAgent"])
	}
}

func TestAnInvalidCatalogueIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ entry, says string }{
		"an unknown field":                  {"comand: [x]", "comand"},
		"a value that is not YAML":          {"command: [", "agent x"},
		"a name that is not the key":        {"name: other", `"other"`},
		"a template that does not parse":    {"command: ['{{.Model']", "command[0]"},
		"a wrong field in a template":       {"command: [x, '{{.Key}}']", "no field .Key"},
		"a wrong field in an unused branch": {"command: [x, '{{if not .Model}}{{.Key}}{{end}}']", "no field .Key"},
		"a wrong field in an else branch":   {"command: [x, '{{with .Model}}{{else}}{{$.Key}}{{end}}']", "no field .Key"},
		"a wrong field in a variable":       {"command: [x, '{{$m := .Key}}{{$m}}']", "no field .Key"},
		"a wrong field in a call":           {"command: [x, '{{printf \"%s\" (len .Key)}}']", "no field .Key"},
		"a field of a text":                 {"command: [x, '{{.Model.Name}}']", "no field .Model.Name"},
		"a range over a text":               {"command: [x, '{{range .Model}}{{end}}']", "command[1]"},
		"a secret on the command line":      {"command: [x, '{{env \"LLM_API_KEY\"}}']", "env"},
		"an empty program name":             {"command: ['']", "command[0]"},
		"a wrong field in the environment":  {"env: {A: '{{.Key}}'}", "env[A]"},
		"an invalid variable name":          {"env: {A=B: c}", "A=B"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := session.ParseCatalogue(map[string]string{"x": c.entry})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
}

func TestAllProblemsOfACatalogueAreReported(t *testing.T) {
	_, err := session.ParseCatalogue(map[string]string{"a": "x: 1", "b": "", "c": "y: 1"})
	if err == nil || !strings.Contains(err.Error(), "agent a") || !strings.Contains(err.Error(), "agent c") {
		t.Errorf("got %v", err)
	}
}

func TestTemplatesAreRendered(t *testing.T) {
	agent := session.Agent{
		Command: []string{"agent", "--model={{.Model}}", "{{with .InstructionsFile}}--system={{.}}{{end}}", "",
			"{{range .ImageURLs}}{{.}};{{end}}", "{{with .MaxIterations}}-n={{.}}{{end}}"},
		Env: map[string]string{"KEY": `{{env "LLM_API_KEY"}}`, "URL": "{{.RouterURL}}", "BASE": "{{.BaseURL}}", "EMPTY": ""},
	}
	command, env, err := agent.Render(
		session.AgentInput{Model: "m", ImageURLs: []string{"a", "b"}, RouterURL: "http://r"},
		func(name string) string { return "value of " + name },
	)
	if err != nil {
		t.Fatal(err)
	}
	// An argument that renders to an empty text is omitted, but an argument that is written as empty
	// is kept.
	if want := []string{"agent", "--model=m", "", "a;b;"}; !slices.Equal(command, want) {
		t.Errorf("the command is %q, want %q", command, want)
	}
	if want := map[string]string{"KEY": "value of LLM_API_KEY", "URL": "http://r", "EMPTY": ""}; !maps.Equal(env, want) {
		t.Errorf("the environment is %q", env)
	}
}

func TestFieldsWithoutAValueRenderAsEmptyText(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[session.AgentInput]()) {
		want := []string{"agent"}
		if field.Type.Kind() == reflect.Bool {
			want = append(want, "false") // a boolean always renders
		}
		agent := session.Agent{Command: []string{"agent", "{{." + field.Name + "}}"}}
		if command, _, err := agent.Render(session.AgentInput{}, nil); err != nil || !slices.Equal(command, want) {
			t.Errorf("%s: the command is %q, %v", field.Name, command, err)
		}
	}
}

func TestNumbersAndListsCanBeUsedInTemplates(t *testing.T) {
	agent := session.Agent{Command: []string{"agent", "{{.MaxIterations}}", "{{if gt .MaxIterations 5}}many{{end}}",
		"{{.ImageURLs}}", "{{index .ImageURLs 1}} of {{len .ImageURLs}}"}}
	command, _, err := agent.Render(session.AgentInput{MaxIterations: 7, ImageURLs: []string{"a", "b"}}, nil)
	if want := []string{"agent", "7", "many", "a b", "b of 2"}; err != nil || !slices.Equal(command, want) {
		t.Errorf("the command is %q, %v", command, err)
	}
}

// documented returns the data of a ConfigMap that a document in docs/ shows.
func documented(t *testing.T, file, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, rest := range strings.Split(string(text), "```yaml\n")[1:] {
		document, _, _ := strings.Cut(rest, "\n```")
		var configMap corev1.ConfigMap
		if err := yaml.UnmarshalStrict([]byte(document), &configMap); err != nil {
			t.Fatal(err)
		}
		if configMap.Name == name {
			return configMap.Data
		}
	}
	t.Fatalf("%s is not documented", name)
	return nil
}

func TestTheDocumentedCatalogueIsValid(t *testing.T) {
	catalogue, err := session.ParseCatalogue(documented(t, "agents.md", v1alpha1.AgentCatalogueName))
	if err != nil || len(catalogue) < 4 {
		t.Errorf("got %d agents, %v", len(catalogue), err)
	}
}

func TestTheDocumentedModelsAreValid(t *testing.T) {
	models, err := session.ParseModels(documented(t, "models.md", v1alpha1.ModelsName))
	if err != nil || len(models) == 0 {
		t.Errorf("got %d models, %v", len(models), err)
	}
}

func TestTheArgumentsOfTheShippedAgentDependOnTheSettings(t *testing.T) {
	text, err := os.ReadFile("../../config/agents/catalogue.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var configMap corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &configMap); err != nil {
		t.Fatal(err)
	}
	catalogue, err := session.ParseCatalogue(configMap.Data)
	if err != nil {
		t.Fatal(err)
	}
	agent := catalogue[session.DefaultAgent]
	if agent.Protocol != session.ProtocolACP || !agent.Confirms {
		t.Errorf("the agent is %+v", agent)
	}
	for name, c := range map[string]struct {
		input session.AgentInput
		want  []string
	}{
		"nothing": {session.AgentInput{Programs: "/bin"}, []string{"/bin/agent", "--condense=false", "--confirm=false",
			"--rate-actions=false"}},
		"everything": {
			session.AgentInput{
				Programs: "/bin", Model: "p/m", BaseURL: "http://127.0.0.1:1", ContextWindow: 200000, Condense: true,
				ConfirmationMode: true, RateActions: true, ReplayFile: "/r", ReasoningEffort: "high", Temperature: "0.2",
			},
			[]string{
				"/bin/agent", "--model=p/m", "--base-url=http://127.0.0.1:1", "--context-window=200000",
				"--reasoning-effort=high", "--temperature=0.2", "--condense=true", "--confirm=true",
				"--rate-actions=true", "--replay=/r",
			},
		},
	} {
		if command, _, err := agent.Render(c.input, nil); err != nil || !slices.Equal(command, c.want) {
			t.Errorf("%s: the command is %q, %v", name, command, err)
		}
	}
}

func TestTheExampleAgentsAreValid(t *testing.T) {
	files, err := filepath.Glob("../../config/agents/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var examples corev1.ConfigMap
		if err := yaml.UnmarshalStrict(text, &examples); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if catalogue, err := session.ParseCatalogue(examples.Data); err != nil ||
			catalogue[name].Protocol != session.ProtocolACP {
			t.Errorf("%s: %+v, %v", file, catalogue, err)
		}
	}
}
