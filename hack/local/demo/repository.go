package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// makeRepository makes a repository with a faulty script and a test that fails.
func makeRepository(ctx context.Context, dir string) (string, error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	repository := filepath.Join(dir, "hello.git")
	const script = `mkdir -p "$1" && git init -q --bare -b main "$1" && git init -q -b main "$2" && cd "$2" &&
		printf '%s\n' 'echo "Hello, nobody"' > greet.sh &&
		printf '%s\n' 'test "$(sh greet.sh Ada)" = "Hello, Ada" && echo passed || { echo failed; exit 1; }' > test.sh &&
		git add . && git -c user.name=demo -c user.email=demo@example.com commit -q -m 'Greet' && git push -q "$1" main`
	cmd := exec.CommandContext(ctx, "sh", "-ec", script, "sh", repository, filepath.Join(dir, "work"))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("make a repository: %w", err)
	}
	return repository, nil
}

func showDiff(ctx context.Context, repository string) error {
	cmd := exec.CommandContext(ctx, "git", "--git-dir", repository, "diff", "main", "demo")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
