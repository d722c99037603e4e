package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func runningWith(turn *v1alpha1.ConversationTurn) *findings {
	c := conversation("ns", "c")
	c.Spec.UserSettingsName = "ada"
	c.Status = v1alpha1.ConversationStatus{State: v1alpha1.StateRunning, Reason: v1alpha1.ReasonRunning,
		Message: "The session is running", Workspace: v1alpha1.WorkspaceScratch, Turn: turn,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}}
	return &findings{conversation: c}
}

func TestStatusShowsTheOutcomeOfTheTurn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		turn *v1alpha1.ConversationTurn
		want []string
	}{
		{nil, []string{"✓ c  RUNNING  Running", "  The session is running"}},
		{&v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonNoModel, Message: "No model\nis set"},
			[]string{"✗ c  RUNNING  Running  Failed: NoModel", "  The session is running", "  No model is set",
				"  → Set llmModel in UserSettings ada"}},
		{&v1alpha1.ConversationTurn{State: v1alpha1.TurnNeedsApproval, Reason: v1alpha1.ReasonApprovalPending,
			Message: "An action waits"}, []string{"… c  RUNNING  Running  NeedsApproval: ApprovalPending",
			"  The session is running", "  An action waits", "  → Approve or reject the action: kubectl parley chat c."}},
	} {
		lines := strings.Split(runningWith(test.turn).tree(time.Now()), "\n")
		for i, want := range test.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("line %d is %q, want %q", i+1, lines[i], want)
			}
		}
	}
}

func TestStatusShowsNoCheckMarkForTheScratchSpaceOfAStoppedSession(t *testing.T) {
	t.Parallel()
	f := runningWith(nil)
	if got := f.workspaceNode().text; !strings.HasPrefix(got, markOK) {
		t.Errorf("while it runs: %q", got)
	}
	f.conversation.Status.State = v1alpha1.StateStopped
	if got := f.workspaceNode().text; strings.Contains(got, markOK) || got == "" {
		t.Errorf("after it stopped: %q", got)
	}
}

func TestEveryReasonOfATurnsStateHasAHint(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), testenv.Path("api", "v1alpha1", "turn_types.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		found++
		reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || turnHints[reason] == "" {
			t.Errorf("%s has no hint", spec.Names[0].Name)
		}
		return true
	})
	if found != len(turnHints) {
		t.Errorf("there are %d reasons and %d hints", found, len(turnHints))
	}
}
