package lifecycle

import (
	"encoding/json"
	"flag"
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
	"github.com/parley-dev/parley/hack/test/status"
	"github.com/parley-dev/parley/hack/test/testenv"
)

var update = flag.Bool("update", false, "overwrite the golden files")

// judgedObject is an object in one of its states, and the status that every GitOps tool must show
// for it.
type judgedObject struct {
	Name   string        `json:"name"`
	Status status.Status `json:"status"`
	// Turn is the state that Parley's health checks must report for the last turn. It is empty if
	// they must report no state.
	Turn   v1alpha1.TurnState `json:"turn,omitempty"`
	Object map[string]any     `json:"object"`
}

func asObject(t *testing.T, kind string, o client.Object) map[string]any {
	t.Helper()
	switch o := o.(type) { // transition times depend on the real clock
	case *v1alpha1.Conversation:
		setToNoon(o.Status.Conditions)
	case *v1alpha1.UserSettings:
		setToNoon(o.Status.Conditions)
	}
	o.GetObjectKind().SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	// Convert through JSON, as the API server does.
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

func setToNoon(conditions []metav1.Condition) {
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.NewTime(lifecycletest.Noon)
	}
}

// judgedObjects returns Conversations and UserSettings in all states of their lifecycle, with the
// expected health of each.
func judgedObjects(t *testing.T) (all []judgedObject) {
	t.Helper()
	for name, s := range states() {
		o, v := s.judged()
		want := status.CurrentStatus
		switch {
		case o.Conversation.DeletionTimestamp != nil:
			want = status.TerminatingStatus
		case s.stalled:
			want = status.FailedStatus
		case s.state == v1alpha1.StateStarting, s.action == RemovePod && s.pod != nil:
			want = status.InProgressStatus
		}
		c := o.Conversation.DeepCopy()
		c.Status = NewStatus(o, v)
		all = append(all, judgedObject{Name: name, Status: want, Object: asObject(t, "Conversation", c)})
	}
	all = append(all, turns(t)...)
	for _, name := range []string{"a ready pod runs", "a lost session stays lost", "an end outlives its pod"} {
		o, v := states()[name].judged()
		changed := o.Conversation.DeepCopy()
		changed.Status = NewStatus(o, v)
		changed.Generation++
		all = append(all, judgedObject{Name: name + ", with a newer spec", Status: status.InProgressStatus,
			Object: asObject(t, "Conversation", changed)})
	}
	fresh := makeConversation("ns", "c")
	fresh.Status.ObservedGeneration, fresh.Status.State = -1, v1alpha1.StateStarting
	all = append(all, judgedObject{Name: "a Conversation that was never reconciled", Status: status.InProgressStatus,
		Object: asObject(t, "Conversation", fresh.Conversation)})
	for _, reason := range []string{"", v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonKeyNotFound,
		v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit} {
		settings, want := &v1alpha1.UserSettings{}, status.CurrentStatus
		settings.Namespace, settings.Name, settings.Generation = "ns", "ada", 1
		var p *Blocker
		if reason != "" {
			p, want = &Blocker{reason, "Secret llm"}, status.InProgressStatus
		}
		if slices.Contains([]string{v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit},
			reason) {
			want = status.FailedStatus
		}
		settings.Status = NewSettingsStatus(settings, SessionKey{},
			map[string]*Blocker{v1alpha1.ConditionLLMAPIKeyResolved: p})
		all = append(all, judgedObject{Name: "UserSettings: " + reason, Status: want,
			Object: asObject(t, "UserSettings", settings)})
	}
	slices.SortFunc(all, func(a, b judgedObject) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// turns returns sessions whose last turn failed or needs approval. The health checks must report
// this turn only if the session runs or has completed.
func turns(t *testing.T) (all []judgedObject) {
	t.Helper()
	for name, counts := range map[string]bool{"a ready pod runs": true, "an end outlives its pod": true,
		"a lost session stays lost": false, "suspended after its pod is gone": false} {
		s, known := states()[name]
		if !known {
			t.Fatalf("there is no state %q", name)
		}
		for _, turn := range []v1alpha1.TurnState{v1alpha1.TurnFailed, v1alpha1.TurnNeedsApproval} {
			o, v := s.judged()
			o.Turn = &v1alpha1.ConversationTurn{State: turn, Reason: v1alpha1.ReasonTurnFailed, Message: "it failed"}
			c := o.Conversation.DeepCopy()
			c.Status = NewStatus(o, v)
			object := asObject(t, "Conversation", c)
			judged := judgedObject{Name: name + ", " + string(turn), Object: object,
				Status: status.Compute(&unstructured.Unstructured{Object: object})}
			if counts {
				judged.Turn = turn
			}
			all = append(all, judged)
		}
	}
	return all
}

// The health checks of GitOps tools are tested with the states in the table, so the table needs
// every reason.
func TestTheTableOfStatesContainsEveryReason(t *testing.T) {
	have := map[string]bool{}
	for _, s := range states() {
		have[s.reason] = true
	}
	reasons := declaredReasons(t, "Reasons of a STARTING session", "Reasons of a STOPPED session", "ReasonRunning")
	if len(reasons) < 17 {
		t.Fatalf("found only %d reasons: %v", len(reasons), reasons)
	}
	// A session whose start is blocked can also have one of the three reasons below. They are
	// declared as reasons of conditions, so declaredReasons does not return them.
	for _, reason := range append(reasons, v1alpha1.ReasonNotAllowed, v1alpha1.ReasonForeignObject,
		v1alpha1.ReasonRejected) {
		if !have[reason] {
			t.Errorf("no state has the reason %s", reason)
		}
		delete(have, reason)
	}
	if len(have) > 0 {
		t.Errorf("states use reasons that are not declared: %v", slices.Sorted(maps.Keys(have)))
	}
}

// declaredReasons returns the reasons in conditions.go, from each group of constants whose comment
// starts with one of these texts.
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

// The file testdata/states.jsonl contains the objects of judgedObjects with their expected health.
// The tests in hack/test/gitops read the file. They check that kstatus, Argo CD's script and Flux's
// expressions compute this health for each object.
func TestTheFileOfStatesIsUpToDate(t *testing.T) {
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
		t.Errorf("%s is not up to date: run go test ./controllers/lifecycle -update (%v)", file, err)
	}
}
