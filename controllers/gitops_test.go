package controllers

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/cel-go/cel"
	lua "github.com/yuin/gopher-lua"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// argoHealth is what Argo CD calls a status of kstatus.
var argoHealth = map[status.Status]string{
	status.CurrentStatus: "Healthy", status.InProgressStatus: "Progressing", status.FailedStatus: "Degraded",
	// It does not ask the script about an object that is being deleted.
	status.TerminatingStatus: "Progressing",
}

// judgedObject is an object as the operator leaves it in one of its states, and what every GitOps
// tool must make of it.
type judgedObject struct {
	Name   string         `json:"name"`
	Status status.Status  `json:"status"`
	Object map[string]any `json:"object"`
}

func asObject(t *testing.T, kind string, o client.Object) map[string]any {
	t.Helper()
	switch o := o.(type) { // of the clock, which is not what this is about
	case *v1alpha1.Conversation:
		atNoon(o.Status.Conditions)
	case *v1alpha1.UserSettings:
		atNoon(o.Status.Conditions)
	}
	o.GetObjectKind().SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	// As it comes from the API server: through JSON.
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return object.Object
}

func atNoon(conditions []metav1.Condition) {
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.NewTime(noon)
	}
}

// judgedObjects are all states of the lifecycle, of both kinds, with the health that follows from
// each.
func judgedObjects(t *testing.T) (all []judgedObject) {
	t.Helper()
	for name, s := range states() {
		o, v := s.judged()
		want := status.CurrentStatus
		switch {
		case o.conversation.DeletionTimestamp != nil:
			want = status.TerminatingStatus
		case s.stalled:
			want = status.FailedStatus
		case s.state == v1alpha1.StateStarting, s.wish == removePod && s.pod != nil:
			want = status.InProgressStatus
		}
		c := o.conversation.DeepCopy()
		c.Status = conversationStatus(o, v)
		all = append(all, judgedObject{name, want, asObject(t, "Conversation", c)})
	}
	for _, name := range []string{"a ready pod runs", "a loss stays lost", "an end outlives its pod"} {
		o, v := states()[name].judged()
		changed := o.conversation.DeepCopy()
		changed.Status = conversationStatus(o, v)
		changed.Generation++
		all = append(all, judgedObject{name + ", and was changed since", status.InProgressStatus, asObject(t, "Conversation",
			changed)})
	}
	fresh := makeConversation("ns", "c")
	fresh.Status.ObservedGeneration, fresh.Status.State = -1, v1alpha1.StateStarting
	all = append(all, judgedObject{"a Conversation that nobody has seen", status.InProgressStatus,
		asObject(t, "Conversation", fresh.Conversation)})
	for _, reason := range []string{"", v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonKeyNotFound,
		v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit} {
		settings, want := userSettings("ns", "ada"), status.CurrentStatus
		settings.Generation = 1
		var p *problem
		if reason != "" {
			p, want = &problem{reason, "Secret llm"}, status.InProgressStatus
		}
		if slices.Contains([]string{v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit},
			reason) {
			want = status.FailedStatus
		}
		settings.Status = userSettingsStatus(settings, sessionKey{},
			map[string]*problem{v1alpha1.ConditionLLMAPIKeyResolved: p})
		all = append(all, judgedObject{"UserSettings: " + reason, want, asObject(t, "UserSettings", settings)})
	}
	slices.SortFunc(all, func(a, b judgedObject) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Whatever the tools are asked with, they must say the same: kstatus, Argo CD's script and Flux's
// expressions.
func TestEveryStateIsJudgedAlikeByAllGitOpsTools(t *testing.T) {
	script, err := os.ReadFile(testenv.Path("config", "gitops", "argocd", "health.lua"))
	if err != nil {
		t.Fatal(err)
	}
	flux := fluxExpressions(t)
	for _, o := range judgedObjects(t) {
		t.Run(o.Name, func(t *testing.T) {
			computed, err := status.Compute(&unstructured.Unstructured{Object: o.Object})
			if err != nil || computed.Status != o.Status {
				t.Errorf("kstatus: %v, %v; want %s", computed, err, o.Status)
			}
			if health, message := argoSays(t, string(script), o.Object); o.Status != status.TerminatingStatus &&
				(health != argoHealth[o.Status] || message == "") {
				t.Errorf("Argo CD: %s %q, want %s", health, message, argoHealth[o.Status])
			}
			if got := flux.judge(t, o.Object); o.Status != status.TerminatingStatus && got != o.Status {
				t.Errorf("Flux: %s, want %s", got, o.Status)
			}
		})
	}
}

// A reason that no state of the table has would be judged by nobody.
func TestTheTableOfStatesHasEveryReason(t *testing.T) {
	have := map[string]bool{}
	for _, s := range states() {
		have[s.reason] = true
	}
	reasons := declaredReasons(t, "Reasons of a STARTING session", "Reasons of a STOPPED session", "ReasonRunning")
	if len(reasons) < 17 {
		t.Fatalf("only %d reasons were found: %v", len(reasons), reasons)
	}
	// Of those of conditions, these hold up a start.
	for _, reason := range append(reasons, v1alpha1.ReasonNotAllowed, v1alpha1.ReasonForeignObject,
		v1alpha1.ReasonRejected) {
		if !have[reason] {
			t.Errorf("no state has the reason %s", reason)
		}
		delete(have, reason)
	}
	if len(have) > 0 {
		t.Errorf("reasons that are declared elsewhere: %v", slices.Sorted(maps.Keys(have)))
	}
}

// declaredReasons are the values of the constants whose group has a comment that begins so.
func declaredReasons(t *testing.T, comments ...string) (reasons []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), testenv.Path("api", "v1alpha1", "conditions.go"), nil,
		parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		group := decl.(*ast.GenDecl)
		if !slices.ContainsFunc(comments, func(c string) bool { return strings.HasPrefix(group.Doc.Text(), c) }) {
			continue
		}
		for _, spec := range group.Specs {
			reason, err := strconv.Unquote(spec.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// The tools themselves, which are too large to be built with this, judge what is in this file: see
// hack/test/gitops.
func TestTheStatesAreWrittenDown(t *testing.T) {
	var text []byte
	for _, o := range judgedObjects(t) {
		line, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	file := filepath.Join("testdata", "states.jsonl")
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(file)
	if err != nil || string(written) != string(text) {
		t.Errorf("%s is not up to date: run go test ./controllers -update (%v)", file, err)
	}
}

// argoSays runs a script with the libraries that Argo CD gives it.
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
		t.Fatalf("the script answers %s", l.Get(-1).Type())
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

// fluxChecks are the expressions of a kind, in the order in which Flux asks them.
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
