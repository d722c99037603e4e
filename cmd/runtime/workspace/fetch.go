package workspace

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/client"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// A failed clone is retried after firstRetry. The delay doubles each time, up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// nameAttempts limits how often the clone is tried if the host name does not exist. Such a name
	// is usually a mistake.
	nameAttempts = 4
	// answerTimeout bounds how long a host may take to begin a response.
	answerTimeout = 2 * time.Minute
)

// allBranches is the refspec of a usual clone. With this refspec, a later git fetch fetches all
// branches.
const allBranches config.RefSpec = "+refs/heads/*:refs/remotes/origin/*"

// LargeObject is the size in bytes above which objects are streamed instead of read into memory.
const LargeObject = 1 << 20

// ErrNoBranch says that the repository does not have the session's branch.
var ErrNoBranch = errors.New("it has no branch")

func init() {
	// For file URLs, go-git would run git programs, which the image may lack.
	client.InstallProtocol("file", server.NewClient(localRepositories{}))
	patient := http.DefaultTransport.(*http.Transport).Clone()
	patient.ResponseHeaderTimeout = answerTimeout
	overHTTP := githttp.NewClient(&http.Client{Transport: patient})
	client.InstallProtocol("http", overHTTP)
	client.InstallProtocol("https", overHTTP)
}

// fetch clones the branch into dir, without a work tree. It retries transient failures until Patience has passed. A
// pod's network may start after its processes, and hosts have short outages.
func (o Options) fetch(ctx context.Context, remote *Remote, dir string) error {
	bounded, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	// Jitter spreads the retries of sessions that failed to reach the same host at the same time.
	retry := wait.Backoff{Duration: cmp.Or(o.RetryDelay, firstRetry), Factor: 2, Jitter: 0.5, Steps: math.MaxInt,
		Cap: lastRetry}
	var trouble error
	for attempt := 1; bounded.Err() == nil; attempt++ {
		err := o.fetchOnce(bounded, remote, dir)
		switch {
		case err == nil:
			return nil
		case bounded.Err() != nil: // keep the earlier error, which explains more than the timeout
		case !unreachable(err), noSuchHost(err) && attempt == nameAttempts:
			return o.explain(remote, err)
		default:
			trouble = err
			o.Log.Warn("cannot reach the repository; retrying", "host", remote.URL.Host)
			select {
			case <-time.After(retry.Step()):
			case <-bounded.Done():
			}
		}
		if err := removeEntries(dir, ""); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case trouble == nil:
		return fmt.Errorf("cloning did not finish within %s", o.Patience)
	}
	return fmt.Errorf("%w; the clone was retried for %s", o.explain(remote, trouble), o.Patience)
}

func (o Options) fetchOnce(ctx context.Context, remote *Remote, dir string) error {
	options := &git.CloneOptions{URL: remote.URL.String(), SingleBranch: true, Depth: 1, Tags: git.NoTags,
		NoCheckout: true}
	if o.Repository.Branch != "" {
		options.ReferenceName = plumbing.NewBranchReferenceName(o.Repository.Branch)
	}
	if o.Token != "" {
		user, password := remote.Credentials(o.Token)
		options.Auth = &githttp.BasicAuth{Username: user, Password: password}
	}
	if remote.URL.Scheme == "file" {
		options.Depth = 0
	}
	if o.History {
		options.Depth, options.SingleBranch = 0, false
	}
	storage := openStorage(dir)
	defer storage.Close()
	repository, err := git.CloneContext(ctx, storage, osfs.New(dir), options)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) && o.Repository.Branch == "" {
		// An empty repository cannot be cloned. Make a local repository with this remote instead,
		// so that the session can push the first commit.
		if err = removeEntries(dir, ""); err == nil {
			repository, err = initialise(dir, options.URL)
		}
	}
	if err != nil {
		return err
	}
	settings, err := repository.Config()
	if err != nil {
		return err
	}
	settings.Remotes[git.DefaultRemoteName].Fetch = []config.RefSpec{allBranches}
	return repository.SetConfig(settings)
}

// openStorage opens the storage of a clone. It keeps the packfile open, which go-git otherwise opens
// again for each file of the work tree, and streams large objects.
func openStorage(dir string) *filesystem.Storage {
	return filesystem.NewStorageWithOptions(osfs.New(filepath.Join(dir, git.GitDirName)), cache.NewObjectLRUDefault(),
		filesystem.Options{KeepDescriptors: true, LargeObjectThreshold: LargeObject})
}

func initialise(dir, remote string) (*git.Repository, error) {
	repository, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{
		InitOptions: git.InitOptions{DefaultBranch: plumbing.Main},
	})
	if err != nil {
		return nil, err
	}
	_, err = repository.CreateRemote(&config.RemoteConfig{Name: git.DefaultRemoteName, URLs: []string{remote}})
	return repository, err
}

func (o Options) explain(remote *Remote, err error) error {
	where := cmp.Or(remote.URL.Host, remote.URL.Path)
	switch {
	case errors.Is(err, transport.ErrEmptyRemoteRepository), errors.Is(err, git.NoMatchingRefSpecError{}),
		errors.Is(err, plumbing.ErrReferenceNotFound):
		if o.Repository.Branch != "" {
			return fmt.Errorf("%w %q", ErrNoBranch, o.Repository.Branch)
		}
		return errors.New("the repository has no default branch: set the branch")
	case errors.Is(err, transport.ErrRepositoryNotFound) && remote.URL.Scheme == "file":
		return fmt.Errorf("there is no git repository at %s", where)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		if o.Token != "" {
			return fmt.Errorf("%s has no such repository, or the token has no access to it", where)
		}
		return fmt.Errorf("%s has no such repository, or it is private and there is no token for %s", where, where)
	case errors.Is(err, transport.ErrAuthenticationRequired):
		if o.Token != "" {
			return fmt.Errorf("%s does not accept the token: replace it in the user's settings", where)
		}
		return fmt.Errorf("%s requires a token, but none is set: the repository is private or does not exist",
			where)
	case errors.Is(err, transport.ErrAuthorizationFailed):
		return fmt.Errorf("%s denies read access to the repository: use a token that may read it", where)
	case errors.As(cause(err), &x509.UnknownAuthorityError{}):
		return fmt.Errorf("the certificate of %s is from an untrusted authority; add the authority's certificate to the "+
			"session's class (spec.network.caBundle)", where)
	case badStatus(err) != 0:
		return fmt.Errorf("%s answers with status %d", where, badStatus(err))
	case unreachable(err):
		return fmt.Errorf("%s cannot be reached: %w", where, cause(err))
	}
	return fmt.Errorf("cannot be cloned: %w", err)
}

// unreachable reports whether an error is transient: there was no response, or a later response may
// differ.
func unreachable(err error) bool {
	if status := badStatus(err); status != 0 {
		return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
	}
	err = cause(err)
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func noSuchHost(err error) bool {
	lookup, ok := errors.AsType[*net.DNSError](cause(err))
	return ok && lookup.IsNotFound
}

// badStatus returns the HTTP status that caused an error, or 0.
func badStatus(err error) int {
	if answer, ok := errors.AsType[*githttp.Err](cause(err)); ok {
		return answer.StatusCode()
	}
	return 0
}

// cause returns the cause of a failed request, without the URL.
func cause(err error) error {
	if unexpected, ok := errors.AsType[*plumbing.UnexpectedError](err); ok { // this error type has no method Unwrap
		err = unexpected.Err
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Err
	}
	return err
}

// localRepositories loads the repositories of file URLs, with or without a work tree.
type localRepositories struct{}

func (localRepositories) Load(endpoint *transport.Endpoint) (storer.Storer, error) {
	for _, dir := range []string{filepath.Join(endpoint.Path, git.GitDirName), endpoint.Path} {
		if _, err := os.Stat(filepath.Join(dir, "objects")); err == nil {
			return filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRUDefault()), nil
		}
	}
	return nil, transport.ErrRepositoryNotFound
}
