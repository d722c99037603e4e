package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goMod = `module example.com/k8s

go 1.26.0

require (
	k8s.io/kubectl v0.0.0
	k8s.io/kubernetes v1.36.3
)
`

func TestVersionComesFromTheRequirement(t *testing.T) {
	version, err := kubernetesVersion(goMod)
	if err != nil || version != "v1.36.3" {
		t.Fatalf("got %q, %v; want v1.36.3", version, err)
	}
	if _, err := kubernetesVersion("module example.com/k8s\n"); err == nil {
		t.Error("a go.mod without Kubernetes was accepted")
	}
}

func TestBuildFlagsNameTheVersionInBothPackages(t *testing.T) {
	want := "-ldflags=-s -w" +
		" -X k8s.io/component-base/version.gitVersion=v1.36.3" +
		" -X k8s.io/component-base/version.gitMajor=1" +
		" -X k8s.io/component-base/version.gitMinor=36" +
		" -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3" +
		" -X k8s.io/client-go/pkg/version.gitMajor=1" +
		" -X k8s.io/client-go/pkg/version.gitMinor=36"
	flags := buildFlags("v1.36.3")
	if got := flags[len(flags)-1]; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestContentHashesLeaveOutGoModHashes(t *testing.T) {
	goSum := "a.example/x v1.0.0 h1:1=\na.example/x v1.0.0/go.mod h1:2=\na.example/y v1.0.0/go.mod h1:3=\n"
	if got := contentHashes(goSum); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
}

// module is a small program in place of Kubernetes; only its go.mod claims more.
func module(t *testing.T, program string) (source, target string) {
	t.Helper()
	source, target = t.TempDir(), filepath.Join(t.TempDir(), "k8s")
	write(t, filepath.Join(source, "go.mod"), "module example.com/k8s\n\ngo 1.26\n\n// k8s.io/kubernetes\nrequire "+
		"k8s.io/kubernetes v1.36.3\n\nreplace k8s.io/kubernetes => ./none\n")
	write(t, filepath.Join(source, "go.sum"), "")
	write(t, filepath.Join(source, "none", "go.mod"), "module k8s.io/kubernetes\n")
	write(t, filepath.Join(source, "main.go"), program)
	t.Setenv("KUBEBUILDER_ASSETS", "")
	t.Setenv("GOFLAGS", "-mod=mod")
	return source, target
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustRun(t *testing.T, source, target string) {
	t.Helper()
	if err := run(context.Background(), source, target); err != nil {
		t.Fatal(err)
	}
}

func upToDate(t *testing.T, source, target string) bool {
	t.Helper()
	b, err := newBuild(context.Background(), source, target)
	if err != nil {
		t.Fatal(err)
	}
	return b.upToDate()
}

func TestBuildIsReusedWhileNothingChanged(t *testing.T) {
	source, target := module(t, "package main\n\nfunc main() {}\n")
	if upToDate(t, source, target) {
		t.Fatal("up to date before it was built")
	}
	mustRun(t, source, target)
	built, err := os.Stat(filepath.Join(target, "kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, source, target)
	if again, err := os.Stat(filepath.Join(target, "kubectl")); err != nil || !os.SameFile(built, again) {
		t.Errorf("built again although nothing changed (%v)", err)
	}

	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { println() }\n")
	if upToDate(t, source, target) {
		t.Error("up to date although a source file changed")
	}
	mustRun(t, source, target)
	if err := os.Remove(filepath.Join(target, "etcd")); err != nil {
		t.Fatal(err)
	}
	if upToDate(t, source, target) {
		t.Error("up to date although a link is gone")
	}
}

func TestFailedBuildShowsTheCompilersWordsAndLeavesNoStamp(t *testing.T) {
	source, target := module(t, "package main\n\nfunc main() { undefinedName() }\n")
	err := run(context.Background(), source, target)
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedName") {
		t.Fatalf("got %v, want the compiler's error", err)
	}
	if upToDate(t, source, target) {
		t.Error("a failed build counts as up to date")
	}
	left, _ := filepath.Glob(filepath.Join(target, "*k8s*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAssetsOfTheUserWinOverBuilding(t *testing.T) {
	source, target := module(t, "package main\n\nfunc main() {}\n")
	assets := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	if err := run(context.Background(), source, target); err == nil || !strings.Contains(err.Error(), assets) {
		t.Errorf("got %v, want an error that names %s", err, assets)
	}
	write(t, filepath.Join(assets, "etcd"), "")
	write(t, filepath.Join(assets, "kube-apiserver"), "")
	mustRun(t, source, target)
	if _, err := os.Stat(target); err == nil {
		t.Error("built although KUBEBUILDER_ASSETS is set")
	}
}

func TestAssetsThatAreTheTargetAreBuilt(t *testing.T) {
	source, target := module(t, "package main\n\nfunc main() {}\n")
	t.Setenv("KUBEBUILDER_ASSETS", target+"/")
	mustRun(t, source, target)
	if !upToDate(t, source, target) {
		t.Error("not built")
	}
}

func TestWaitForAnotherBuildCanBeInterrupted(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, dir); !errors.Is(err, errInterrupted) {
		t.Errorf("got %v", err)
	}
	unlock()
	if unlock, err = lock(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}
