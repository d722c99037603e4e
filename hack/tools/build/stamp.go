package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// environment is set for every go command. Without cgo the result runs on any
// distribution; a workspace file above must not change what is built.
var environment = []string{"CGO_ENABLED=0", "GOWORK=off"}

// build is what there is to build, and the stamp that tells it from any other.
type build struct {
	source  string
	target  string
	version string   // of Kubernetes, such as v1.36.3
	modules int      // how many modules may have to be fetched
	flags   []string // of go list and go build
	stamp   string
}

func newBuild(ctx context.Context, source, target string) (*build, error) {
	goMod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return nil, err
	}
	goSum, err := os.ReadFile(filepath.Join(source, "go.sum"))
	if err != nil {
		return nil, err
	}
	b := &build{source: source, target: target, modules: contentHashes(string(goSum))}
	if b.version, err = kubernetesVersion(string(goMod)); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(source, "go.mod"), err)
	}
	b.flags = buildFlags(b.version)
	toolchain, err := toolchain(ctx, source)
	if err != nil {
		return nil, err
	}
	b.stamp, err = stampOf(source, append(b.flags, toolchain))
	return b, err
}

// contentHashes counts the modules whose content, not just go.mod, is in go.sum.
func contentHashes(goSum string) int {
	lines := strings.Count(goSum, "\n")
	return lines - strings.Count(goSum, "/go.mod ")
}

var requirement = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

func kubernetesVersion(goMod string) (string, error) {
	match := requirement.FindStringSubmatch(goMod)
	if match == nil {
		return "", errors.New("no requirement of k8s.io/kubernetes")
	}
	return match[1], nil
}

// buildFlags tell the components their version; without it the server says
// v0.0.0 and clients refuse it.
func buildFlags(version string) []string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	linker := "-ldflags=-s -w"
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		linker += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s",
			pkg, version, numbers[0], numbers[1])
	}
	return []string{"-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", linker}
}

func toolchain(ctx context.Context, source string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), environment...)
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return string(output), nil
}

// stampOf is a hash of all files in the source directory and of the inputs.
func stampOf(source string, inputs []string) (string, error) {
	entries, err := os.ReadDir(source)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, input := range inputs {
		fmt.Fprintf(hash, "%q\n", input)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(source, entry.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%q %x\n", entry.Name(), sha256.Sum256(content))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// upToDate is whether the target has this build, with all its links.
func (b *build) upToDate() bool {
	stamp, err := os.ReadFile(b.stampFile())
	if err != nil || string(stamp) != b.stamp {
		return false
	}
	for _, name := range components {
		if _, err := os.Stat(filepath.Join(b.target, name)); err != nil {
			return false
		}
	}
	return true
}

func (b *build) writeStamp() error {
	temporary := b.stampFile() + ".new"
	if err := os.WriteFile(temporary, []byte(b.stamp), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, b.stampFile())
}

func (b *build) stampFile() string { return filepath.Join(b.target, ".stamp") }
