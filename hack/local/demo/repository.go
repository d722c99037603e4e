package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// makeRepository makes a repository with a faulty script and a test that fails. It returns the
// directory for the git host.
func makeRepository(ctx context.Context, dir string) (root string, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	root = filepath.Join(dir, "repositories")
	const script = `mkdir -p "$1" && git init -q --bare -b main "$1" && git init -q -b main "$2" && cd "$2" &&
		printf '%s\n' 'echo "Hello, nobody"' > greet.sh &&
		printf '%s\n' 'test "$(sh greet.sh Ada)" = "Hello, Ada" && echo passed || { echo failed; exit 1; }' > test.sh &&
		git add . && git -c user.name=demo -c user.email=demo@example.com commit -q -m 'Greet' && git push -q "$1" main`
	cmd := exec.CommandContext(ctx, "sh", "-ec", script, "sh", filepath.Join(root, repositoryName+".git"),
		filepath.Join(dir, "work"))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("make a repository: %w", err)
	}
	return root, nil
}

func showPullRequest(ctx context.Context, host *gitHost, pull pullRequest, link string) error {
	fmt.Printf("\nThe agent opened a pull request: %s\n%s (%s into %s)\n\n", link, pull.Title, pull.Head, pull.Base)
	if pull.Body != "" {
		fmt.Println(pull.Body + "\n")
	}
	cmd := exec.CommandContext(ctx, "git", "--git-dir", host.dir, "diff", pull.Base+"..."+pull.Head, "--")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
