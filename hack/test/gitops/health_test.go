package gitops

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/cel-go/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/hack/test/status"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// argoHealth maps kstatus values to Argo CD's health values.
var argoHealth = map[status.Status]string{
	status.CurrentStatus: "Healthy", status.InProgressStatus: "Progressing", status.FailedStatus: "Degraded",
	// For an object that is being deleted, Argo CD does not run the script and shows Progressing.
	status.TerminatingStatus: "Progressing",
}

// argoTurn and fluxTurn map the outcome of the last turn to a health value. kstatus ignores the
// outcome.
var (
	argoTurn = map[string]string{"Failed": "Degraded", "NeedsApproval": "Suspended"}
	fluxTurn = map[string]status.Status{"Failed": status.FailedStatus, "NeedsApproval": status.InProgressStatus}
)

// state is an object in one state of its lifecycle. Status is its kstatus value.
type state struct {
	Name   string
	Status status.Status
	Turn   string
	Object map[string]any
}

// health returns the values that Argo CD and Flux must compute.
func (s state) health() (argo string, flux status.Status) {
	if s.Turn != "" {
		return argoTurn[s.Turn], fluxTurn[s.Turn]
	}
	return argoHealth[s.Status], s.Status
}

// readStates returns the states that the tests of package lifecycle recorded.
func readStates(t *testing.T) (all []state) {
	t.Helper()
	file, err := os.Open(testenv.Path("controllers", "lifecycle", "testdata", "states.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		var s struct {
			state
			Object json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if err := object.UnmarshalJSON(s.Object); err != nil {
			t.Fatal(err)
		}
		all = append(all, state{s.Name, s.Status, s.Turn, object.Object})
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%d states, %v", len(all), err)
	}
	return all
}

// The controllers' tests use Parley's own package hack/test/status instead of kstatus, to avoid the
// dependency. This test checks that both give the same results.
func TestOurHealthRulesMatchKstatus(t *testing.T) {
	values := []string{"", "True", "False", "Unknown"}
	for _, generation := range []int64{0, 1, 2} {
		for _, ready := range values {
			for _, stalled := range values {
				for _, reconciling := range values {
					if stalled == "True" && reconciling == "True" {
						continue // kstatus uses the first condition; Parley never sets both
					}
					o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "parley.dev/v1alpha1",
						"kind": "Conversation", "metadata": map[string]any{"name": "c", "generation": int64(1)}}}
					content := map[string]any{}
					if generation > 0 {
						content["observedGeneration"] = generation
					}
					var conditions []any
					for kind, value := range map[string]string{"Ready": ready, "Stalled": stalled, "Reconciling": reconciling} {
						if value != "" {
							conditions = append(conditions, map[string]any{"type": kind, "status": value, "reason": "Test"})
						}
					}
					content["conditions"] = conditions
					o.Object["status"] = content
					want, err := kstatus.Compute(o)
					if err != nil {
						t.Fatal(err)
					}
					if got := status.Compute(o); string(got) != want.Status.String() {
						t.Errorf("%v: %s, kstatus says %s", content, got, want.Status)
					}
				}
			}
		}
	}
}

func TestEveryStateHasTheExpectedHealthInEachGitOpsTool(t *testing.T) {
	script, err := os.ReadFile(testenv.Path("config", "gitops", "argocd", "health.lua"))
	if err != nil {
		t.Fatal(err)
	}
	flux := fluxExpressions(t)
	for _, o := range readStates(t) {
		t.Run(o.Name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: o.Object}
			computed, err := kstatus.Compute(object)
			if err != nil || computed.Status.String() != string(o.Status) || status.Compute(object) != o.Status {
				t.Errorf("kstatus: %v, %v; our rules: %s; want %s", computed, err, status.Compute(object), o.Status)
			}
			wantArgo, wantFlux := o.health()
			if health, message := argoSays(t, string(script), o.Object); o.Status != status.TerminatingStatus &&
				(health != wantArgo || message == "") {
				t.Errorf("Argo CD: %s %q, want %s", health, message, wantArgo)
			}
			if got := flux.judge(t, o.Object); o.Status != status.TerminatingStatus && got != wantFlux {
				t.Errorf("Flux: %s, want %s", got, wantFlux)
			}
		})
	}
}

// argoSays runs Argo CD's health script, with the Lua libraries that Argo CD enables.
func argoSays(t *testing.T, script string, object map[string]any) (health, message string) {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	l.SetGlobal("obj", luaValue(l, object))
	if err := l.DoString(script); err != nil {
		t.Fatal(err)
	}
	answer, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returned %s", l.Get(-1).Type())
	}
	return answer.RawGetString("status").String(), answer.RawGetString("message").String()
}

func luaValue(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case bool:
		return lua.LBool(v)
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		table := l.CreateTable(len(v), 0)
		for _, item := range v {
			table.Append(luaValue(l, item))
		}
		return table
	case map[string]any:
		table := l.CreateTable(0, len(v))
		for key, item := range v {
			table.RawSetString(key, luaValue(l, item))
		}
		return table
	}
	return lua.LNil
}

// fluxChecks contains the expressions of each kind, in the order in which Flux evaluates them.
type fluxChecks map[string][]struct {
	program cel.Program
	means   status.Status
}

func fluxExpressions(t *testing.T) fluxChecks {
	t.Helper()
	text, err := os.ReadFile(testenv.Path("config", "gitops", "flux", "sessions.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []struct{ Kind, InProgress, Failed, Current string }
		}
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	env, err := cel.NewEnv(cel.HomogeneousAggregateLiterals(), cel.CrossTypeNumericComparisons(true), cel.OptionalTypes())
	if err != nil {
		t.Fatal(err)
	}
	checks := fluxChecks{}
	for _, exprs := range kustomization.Spec.HealthCheckExprs {
		for _, e := range []struct {
			text  string
			means status.Status
		}{{exprs.InProgress, status.InProgressStatus}, {exprs.Failed, status.FailedStatus},
			{exprs.Current, status.CurrentStatus}} {
			if e.text == "" {
				continue
			}
			parsed, issues := env.Parse(e.text)
			if issues != nil {
				t.Fatal(issues)
			}
			program, err := env.Program(parsed)
			if err != nil {
				t.Fatal(err)
			}
			checks[exprs.Kind] = append(checks[exprs.Kind], struct {
				program cel.Program
				means   status.Status
			}{program, e.means})
		}
	}
	return checks
}

func (f fluxChecks) judge(t *testing.T, object map[string]any) status.Status {
	t.Helper()
	o := &unstructured.Unstructured{Object: object}
	if seen, found, _ := unstructured.NestedInt64(object, "status", "observedGeneration"); found &&
		seen != o.GetGeneration() {
		return status.InProgressStatus
	}
	for _, check := range f[o.GetKind()] {
		holds, _, err := check.program.ContextEval(t.Context(), object)
		if err != nil {
			t.Fatal(err)
		}
		if holds.Value() == true {
			return check.means
		}
	}
	return status.InProgressStatus
}
