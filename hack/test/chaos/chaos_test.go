package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// This test is a short run with kills. `make chaos` runs longer. The seed is random and printed.
func TestAcceptedWritesSurviveKills(t *testing.T) {
	bin := t.TempDir()
	build(t, ".", "-o", bin, "./cmd/manager", "./cmd/facade", "./cmd/archive")
	runBriefly(t, options{kills: 12, pool: 3, binDir: bin})
}

// This test is a short run with spending. `make chaos-spend` runs longer.
func TestSpendingLimitsHoldDuringKills(t *testing.T) {
	bin := t.TempDir()
	build(t, ".", "-o", bin, "./cmd/...")
	build(t, ".", "-tags=testclock", "-o", filepath.Join(bin, "archive-testclock"), "./cmd/archive")
	build(t, "hack/test/s3", "-o", filepath.Join(bin, "s3"), "./server")
	runBriefly(t, options{kills: 12, spenders: 4, binDir: bin})
}

func build(t *testing.T, dir string, args ...string) {
	t.Helper()
	build := exec.Command("go", append([]string{"build", "-ldflags=-s -w"}, args...)...)
	build.Dir = testenv.Path(dir)
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, output)
	}
}

func runBriefly(t *testing.T, o options) {
	t.Helper()
	o.assets = cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), testenv.Path("bin", "k8s"))
	o.config, o.limit, o.killing = testenv.Path("config"), 4*time.Minute, t.Context()
	var out strings.Builder
	err := run(t.Context(), o, &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
}

func TestLeakedKeysAreFoundAnywhereInPlainTextAndBase64(t *testing.T) {
	for _, text := range []string{
		"before " + canary + "-1 after",
		`{"data":{"key":"c2stY2hhb3NjYW5hcnk3LWtleS0x"}}`,
		"eHNrLWNoYW9zY2FuYXJ5Ny0x", "eHhzay1jaGFvc2NhbmFyeTctMQ==",
	} {
		r := newReport()
		r.checkForKeys([]byte(text), "a text")
		if !r.violated() {
			t.Errorf("no key found in %s", text)
		}
	}
	r := newReport()
	r.addKeys([]byte("made by the operator"))
	if r.checkForKeys([]byte("nothing"), "a text"); r.violated() {
		t.Error("found a key in a text without one")
	}
	if r.checkForKeys([]byte("it was made by the operator."), "a text"); !r.violated() {
		t.Error("did not find a key that the operator generated")
	}
}

func TestTheOldAndTheNewValueArePossibleAfterAnUnknownOutcome(t *testing.T) {
	var p possible[string]
	p.take("one", accepted)
	p.take("two", unknown)
	p.take("three", refused)
	if !p.has("one") || !p.has("two") || p.has("three") {
		t.Errorf("possible values are %v", p)
	}
	if p.take("four", accepted); p.has("one") || !p.has("four") {
		t.Errorf("possible values are %v", p)
	}
}
