package main_test

import (
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestABranchThatIsNamedAfterASecretIsNotTold(t *testing.T) {
	t.Parallel()
	p := newPod(t, session.Document{
		Repository: &session.Repository{Name: repository(t)}, FirstMessage: "go", Agent: agent(`git checkout -q -b "of-$MINE"`),
		CustomSecrets: []session.CustomSecret{{Name: "MINE", ValueFile: "custom.0"}},
	})
	p.start(t)
	code, got := p.wait(t)
	if code != 0 || got.Reason != v1alpha1.ReasonCompleted || got.Result == nil || got.Result.Branch != "of-***" {
		t.Errorf("it ended with status %d: %+v, %+v", code, got, got.Result)
	}
	p.start(t)
	p.waitReady(t)
	if got := p.status(t).Workspace; got.Branch != "of-***" {
		t.Errorf("started again, the workspace is %+v", got)
	}
}
