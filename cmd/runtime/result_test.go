package main_test

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
)

func TestASecretInABranchNameIsMasked(t *testing.T) {
	t.Parallel()
	p := newPod(t, session.Document{
		Repository: &session.Repository{Name: repository(t)}, FirstMessage: "go",
		Agent:         agent(`git checkout -q -b "of-$MINE"`),
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
		t.Errorf("after the restart the workspace is %+v", got)
	}
}

func TestTheCABundleOfAClassVerifiesTheArchivesCertificate(t *testing.T) {
	t.Parallel()
	company := newAuthority(t)
	p := newPod(t, session.Document{UID: "u1", FirstMessage: "work", OneShot: true, Agent: agent("true"),
		CABundle: company.pem})
	store := startArchive(t, p)
	p.doc.ArchiveURL = company.serve(t, httpapi.NewHandler(store.Store, anyUID{}, func() ([]ed25519.PublicKey, error) {
		return []ed25519.PublicKey{facadeKey.Public().(ed25519.PublicKey)}, nil
	}))
	p.writeDocument(t)
	// Run the session as its second attempt. Unlike a first attempt, it begins with a read from the
	// archive.
	p.image = []string{"PARLEY_ATTEMPT=2", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1"}
	p.start(t)
	p.wait(t)
	if log := p.output(); strings.Contains(log, "level=ERROR") {
		t.Errorf("the log is\n%s", log)
	}
	if _, err := store.Ending(t.Context(), "u1"); err != nil {
		t.Errorf("the archive has no ending: %v", err)
	}
}
