package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// This is a short run for each change; `make chaos` runs longer. The seed is random and printed.
func TestAcceptedWritesSurviveKills(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "./cmd/manager", "./cmd/facade",
		"./cmd/archive")
	build.Dir = testenv.Path()
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, output)
	}
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = testenv.Path("bin", "k8s")
	}
	var out strings.Builder
	err := run(t.Context(), options{kills: 12, pool: 3, binDir: bin, assets: assets, config: testenv.Path("config"),
		limit: 4 * time.Minute, killing: t.Context()}, &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeysAreFoundInAnyEncodingAndPosition(t *testing.T) {
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

func TestBothValuesArePossibleAfterAWriteWithAnUnknownOutcome(t *testing.T) {
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
