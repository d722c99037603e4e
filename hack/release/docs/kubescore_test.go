package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const gradeCritical = 1

type scoredObject struct {
	TypeMeta   struct{ Kind string } `json:"type_meta"`
	ObjectMeta struct{ Name string } `json:"object_meta"`
	Checks     []struct {
		Check   struct{ ID string }
		Grade   int
		Skipped bool
	}
}

// criticalFindings returns kube-score's critical findings about config/default. Each finding has
// the form "kind name check".
func criticalFindings(t *testing.T) map[string]bool {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Rel(dir, testenv.Path("config", "default"))
	if err != nil {
		t.Fatal(err)
	}
	// Like install.yaml, the overlay refers to the image by digest.
	overlay := "resources: [" + base + "]\nimages: [{name: parley, digest: sha256:" + strings.Repeat("0", 64) + "}]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	rendered, err := manifests.Render(t.Context(), dir, testenv.Path("bin", "k8s", "kubectl"), "kustomize")
	if err != nil {
		t.Fatal(err)
	}
	// kube-score exits with an error if it has findings.
	score := exec.CommandContext(t.Context(), "go", "tool", "kube-score", "score", "--output-format=json", "-")
	score.Dir, score.Stdin = testenv.Path("hack", "tools", "kubescore"), bytes.NewReader(rendered)
	var stderr bytes.Buffer
	score.Stderr = &stderr
	output, _ := score.Output()
	var objects []scoredObject
	if err := json.Unmarshal(output, &objects); err != nil || len(objects) < 5 {
		t.Fatalf("kube-score reviewed %d objects: %v\n%s", len(objects), err, &stderr)
	}
	found := map[string]bool{}
	for _, object := range objects {
		for _, c := range object.Checks {
			if c.Grade == gradeCritical && !c.Skipped {
				found[object.TypeMeta.Kind+" "+object.ObjectMeta.Name+" "+c.Check.ID] = true
			}
		}
	}
	return found
}

func TestDocsJustifyEveryCriticalFindingOfKubeScore(t *testing.T) {
	_, section, found := strings.Cut(document(t, "security.md"), "\n## Findings of kube-score\n")
	if !found {
		t.Fatal("docs/security.md has no section about kube-score")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	justified := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (\\w+ [\\w-]+) \\| `([\\w-]+)` \\| .{20,} \\|$").
		FindAllStringSubmatch(section, -1) {
		justified[row[1]+" "+row[2]] = true
	}
	findings := criticalFindings(t)
	for finding := range findings {
		if !justified[finding] {
			t.Errorf("docs/security.md does not justify %s", finding)
		}
	}
	for finding := range justified {
		if !findings[finding] {
			t.Errorf("docs/security.md justifies %s, which kube-score does not find", finding)
		}
	}
}
