package workspace

import (
	"context"
	"fmt"
	"os"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
)

// FetchedPrefix is the prefix of the references to commits that FetchCommits fetched.
const FetchedPrefix = "refs/parley/"

// FetchCommits fetches the needed commits into a fresh clone. The clone may lack them, because the
// branch may have changed since an earlier attempt cloned it. If the host does not serve single
// commits, FetchCommits clones the whole history. It also tries to fetch the wanted commit, unless
// wanted is empty. It returns no error if the host lacks the wanted commit.
func FetchCommits(ctx context.Context, o Options, dir string, needed []string, wanted string) error {
	remote, err := Locate(o.Repository)
	if err != nil {
		return err
	}
	if remote.User == "" {
		o.Token = ""
	}
	if wanted != "" {
		_ = o.fetchCommits(ctx, remote, dir, []string{wanted})
	}
	if o.fetchCommits(ctx, remote, dir, needed) == nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	o.History = true
	repository, err := o.cloneAs(ctx, remote, dir)
	if err != nil {
		return err
	}
	if missing := missingCommits(repository, needed); len(missing) > 0 {
		return fmt.Errorf("the repository no longer has commit %s", missing[0])
	}
	return nil
}

func (o Options) fetchCommits(ctx context.Context, remote *Remote, dir string, commits []string) error {
	repository, err := git.PlainOpen(dir)
	if err != nil {
		return err
	}
	options := &git.FetchOptions{Depth: 1, Tags: git.NoTags}
	if o.Token != "" {
		user, password := remote.Credentials(o.Token)
		options.Auth = &githttp.BasicAuth{Username: user, Password: password}
	}
	for _, commit := range missingCommits(repository, commits) {
		options.RefSpecs = []config.RefSpec{config.RefSpec(commit + ":" + FetchedPrefix + commit)}
		if err := repository.FetchContext(ctx, options); err != nil {
			return err
		}
	}
	if len(missingCommits(repository, commits)) > 0 {
		return plumbing.ErrObjectNotFound
	}
	return nil
}

func missingCommits(repository *git.Repository, commits []string) (missing []string) {
	for _, commit := range commits {
		if _, err := repository.CommitObject(plumbing.NewHash(commit)); err != nil {
			missing = append(missing, commit)
		}
	}
	return missing
}
