// Package publish pushes the session's branch and opens pull requests. The agent uses it through
// tools, and the user through buttons on the page.
package publish

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/githost"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

const (
	gitTimeout = 5 * time.Minute
	// stopGrace is how long a git command may take to exit after a timeout.
	stopGrace = 2 * time.Second
	maxShown  = 1000
)

// ErrRefused is the error for a request that the caller can correct.
var ErrRefused = errors.New("refused")

var errNoTitle = fmt.Errorf("%w: title: must not be empty", ErrRefused)

// Publisher publishes a clone's commits. It is safe for concurrent use.
type Publisher struct {
	// Host is the API of the repository's host. It is nil if the session has no token for the host.
	Host *githost.Host
	// Dir is the clone's directory. Remote is the repository's URL. git reaches the remote through
	// the session's git proxy, so git needs no token.
	Dir, Remote string
	// Base is the branch that the session started from, or empty for the default branch. If Base is
	// checked out, the user's changes are committed to a new branch with the name NewBranch.
	Base, NewBranch string
	// Env is git's environment. Confine gives git the same restrictions as the agent, because the
	// agent controls the clone's hooks and configuration.
	Env     []string
	Confine func(*exec.Cmd)
	// Mask masks the session's secrets.
	Mask func(string) string
	// Created is called with the link of each pull request: a new pull request, or the existing
	// pull request of the branch.
	Created func(link string)

	mu sync.Mutex
}

// CommitAndPush commits all changes and pushes the current branch. If the base branch is checked
// out, or HEAD is detached, it first creates a new branch, so the changes can be reviewed.
func (p *Publisher) CommitAndPush(ctx context.Context, r session.PublishRequest) (branch string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Host == nil {
		return "", githost.ErrNoToken
	}
	if err := p.commit(ctx, r.Title); err != nil {
		return "", err
	}
	return p.push(ctx)
}

// CreatePullRequest pushes the current branch and opens a pull request for it.
func (p *Publisher) CreatePullRequest(ctx context.Context, r session.PublishRequest) (link string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.create(ctx, r)
}

// CommitAndCreate commits all changes, pushes the branch and opens a pull request for it.
func (p *Publisher) CommitAndCreate(ctx context.Context, r session.PublishRequest) (link string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.Host == nil:
		return "", githost.ErrNoToken
	case strings.TrimSpace(r.Title) == "":
		return "", errNoTitle
	}
	if err := p.commit(ctx, r.Title); err != nil {
		return "", err
	}
	return p.create(ctx, r)
}

func (p *Publisher) create(ctx context.Context, r session.PublishRequest) (link string, err error) {
	if strings.TrimSpace(r.Title) == "" {
		return "", errNoTitle
	}
	if r.Base == "" {
		if r.Base, err = p.base(ctx); err != nil {
			return "", err
		}
	}
	branch, err := p.branch(ctx)
	switch {
	case err != nil:
		return "", err
	case branch == r.Base:
		return "", fmt.Errorf("%w: %s is the base branch: create another branch, commit to it and try again", ErrRefused,
			branch)
	}
	if branch, err = p.push(ctx); err != nil {
		return "", err
	}
	link, err = p.Host.CreatePullRequest(ctx, githost.PullRequest{Title: r.Title, Body: r.Body, Branch: branch,
		Base: r.Base})
	if err != nil {
		return "", err
	}
	p.Created(link)
	return link, nil
}

func (p *Publisher) base(ctx context.Context) (string, error) {
	if p.Base != "" {
		return p.Base, nil
	}
	return p.Host.DefaultBranch(ctx)
}

func (p *Publisher) branch(ctx context.Context) (string, error) {
	name, err := p.git(ctx, "symbolic-ref", "--quiet", "--short", "HEAD")
	if err != nil || name == "" {
		return "", fmt.Errorf("%w: no branch is checked out: create one with git switch -c", ErrRefused)
	}
	return name, nil
}

func (p *Publisher) push(ctx context.Context) (branch string, err error) {
	if branch, err = p.branch(ctx); err != nil {
		return "", err
	}
	_, err = p.git(ctx, "push", "--quiet", p.Remote, "refs/heads/"+branch+":refs/heads/"+branch)
	return branch, err
}

// commit commits all changes. It first creates a new branch if Base is checked out, or if HEAD is
// detached.
func (p *Publisher) commit(ctx context.Context, message string) error {
	base, err := p.base(ctx)
	if err != nil {
		return err
	}
	status, err := p.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" && strings.TrimSpace(message) == "" {
		return fmt.Errorf("%w: title: required, because there are changes to commit, and the title is the commit "+
			"message", ErrRefused)
	}
	if branch, err := p.branch(ctx); err != nil || branch == base {
		if err := p.newBranch(ctx); err != nil {
			return err
		}
	}
	if status == "" {
		return nil
	}
	if _, err := p.git(ctx, "add", "--all"); err != nil {
		return err
	}
	commit := []string{"commit", "--quiet", "--message", message}
	if _, err := p.git(ctx, "var", "GIT_COMMITTER_IDENT"); err != nil { // the settings name no author
		commit = append([]string{"-c", "user.name=Parley", "-c", "user.email=parley@localhost"}, commit...)
	}
	_, err = p.git(ctx, commit...)
	return err
}

// newBranch creates a branch at the current commit. If the name is taken, it adds a number.
func (p *Publisher) newBranch(ctx context.Context) error {
	name := p.NewBranch
	for n := 2; ; n++ {
		if _, err := p.git(ctx, "show-ref", "--verify", "--quiet", "refs/heads/"+name); err != nil {
			break
		}
		name = fmt.Sprintf("%s-%d", p.NewBranch, n)
	}
	_, err := p.git(ctx, "switch", "--quiet", "-c", name)
	return err
}

func (p *Publisher) git(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	env := append(append([]string{}, p.Env...), "GIT_TERMINAL_PROMPT=0", "GIT_EDITOR=true", "LC_ALL=C")
	cmd := process.Command(p.Dir, env, "git", args...)
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: the image of the session has no git", ErrRefused)
	}
	p.Confine(cmd)
	output := &bounded{}
	cmd.Stdout, cmd.Stderr = output, output
	child, err := process.Start(cmd, func(*process.Child) {})
	if err != nil {
		return "", fmt.Errorf("git cannot be started: %w", err)
	}
	select {
	case <-child.Ended:
	case <-ctx.Done():
		child.Stop(stopGrace)
		return "", fmt.Errorf("git %s did not finish: %w", args[0], ctx.Err())
	}
	text := strings.TrimSpace(output.String())
	if failure := child.Failure(); failure != "" {
		return text, fmt.Errorf("%w: git %s failed: %s", ErrRefused, args[0], p.Mask(last(text)))
	}
	return text, nil
}

func last(text string) string {
	return strings.ToValidUTF8(text[max(0, len(text)-maxShown):], "")
}

// bounded keeps the first MiB of the output.
type bounded struct{ strings.Builder }

func (b *bounded) Write(text []byte) (int, error) {
	if room := 1<<20 - b.Len(); room > 0 {
		_, _ = b.Builder.Write(text[:min(room, len(text))])
	}
	return len(text), nil
}
