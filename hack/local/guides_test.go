package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var runnable = regexp.MustCompile("(?ms)^```sh runnable\n(.*?)^```$")

// The test runs the commands of each document in order, in a cluster started by `make run`.
func TestTheCommandsInTheDocsWork(t *testing.T) {
	installation := newInstallation(t)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", installation.bin+"/",
		"./cmd/kubectl-parley", "./cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	installation.start(t)
	guides, err := filepath.Glob(filepath.Join("docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, guide := range guides {
		for _, block := range runnable.FindAllStringSubmatch(read(t, guide), -1) {
			ran++
			installation.run(t, guide, block[1])
		}
	}
	if ran < 5 {
		t.Errorf("only %d blocks were found", ran)
	}
	answers := installation.run(t, "README.md", typedCommands(read(t, "README.md")))
	for _, want := range []string{`{"message":"Settings stored"}`, `"conversation_id":"mine"`,
		"conversation.parley.dev/first condition met"} {
		if !strings.Contains(answers, want) {
			t.Errorf("the README's commands answer without %s:\n%s", want, answers)
		}
	}
}

// typedCommands returns the commands that follow a "$" prompt. It skips make commands, because the
// test builds and starts the programs itself.
func typedCommands(text string) string {
	var commands []string
	open := false
	for line := range strings.Lines(text) {
		command, prompted := strings.CutPrefix(line, "    $ ")
		if prompted && !strings.HasPrefix(command, "make ") || open {
			commands = append(commands, command)
			open = strings.HasSuffix(command, "\\\n")
		}
	}
	return strings.Join(commands, "")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs commands in a new directory. The directory has links to .local and config, so the paths
// in the commands work as in the root of the repository.
func (i installation) run(t *testing.T, guide, commands string) (answers string) {
	t.Helper()
	dir := t.TempDir()
	config, err := filepath.Abs("config")
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{".local": i.state, "config": config} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(commands,
		"127.0.0.1:3000", fmt.Sprintf("127.0.0.1:%d", i.port)))
	shell.Dir = dir
	shell.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(i.state, "kubeconfig"),
		"PATH="+strings.Join([]string{i.bin, os.Getenv("KUBEBUILDER_ASSETS"), os.Getenv("PATH")}, ":"))
	output, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s\nanswers\n%s", guide, err, commands, output)
	}
	return string(output)
}
