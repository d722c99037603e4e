package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/cmd/facade/archive"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/facade/server"
)

const (
	// sweepEvery is how often it is looked for what belongs to no conversation.
	sweepEvery = time.Hour
	// sweepAgain is when, where the conversations are not known.
	sweepAgain = time.Minute
	// deleteTimeout bounds the deletion of what is kept of one conversation. What it leaves the
	// sweep finds.
	deleteTimeout = 2 * time.Minute
	// deletions is how many conversations' archives are deleted at once.
	deletions = 4
)

type archiveOptions struct {
	url, address string
	retention    time.Duration
	// perUser bounds what is kept of one user's conversations.
	perUser resource.QuantityValue
	// only serves the archive, and no user.
	only bool
}

// keptArchive is an archive that this process reads, and perhaps keeps.
type keptArchive interface {
	archive.Reader
	io.Closer
}

// openArchive opens the archive. One that another process keeps is only read; of one that is kept
// here, sessions are served that hand over what they leave. It is nil where there is none.
func openArchive(ctx context.Context, o options, objects *cluster.Cluster, failed chan<- error) (keptArchive, error) {
	signer := live.NewSigner(o.server.SigningKeyDir)
	switch u, err := url.Parse(o.archive.url); {
	case o.archive.url == "":
		return nil, nil
	case err != nil:
		return nil, errors.New("--archive: it is no URL")
	case u.Scheme == "http" || u.Scheme == "https":
		return archive.NewRemote(o.archive.url, signer.ArchiveToken), nil
	}
	return keepArchive(ctx, o, objects, signer, failed)
}

func keepArchive(ctx context.Context, o options, objects *cluster.Cluster, signer *live.Signer,
	failed chan<- error) (*archive.Store, error) {
	if o.archive.perUser.Sign() < 0 {
		return nil, errors.New("--archive-per-user: it is less than nothing")
	}
	store, err := archive.Open(ctx, o.archive.url)
	if err != nil {
		return nil, err
	}
	store.BoundOwners(o.archive.perUser.Value())
	listener, err := net.Listen("tcp", o.archive.address)
	if err != nil {
		return nil, fmt.Errorf("listen for sessions: %w", err)
	}
	listening := &http.Server{
		Handler:           archive.NewHandler(store, objects, signer.Public),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	go func() { failed <- fmt.Errorf("serve sessions: %w", listening.Serve(listener)) }()
	go keepOnlyWhatIsOwned(ctx, o, store, objects)
	return store, nil
}

// runArchive keeps the archive that facades read and sessions write, and serves no user. It knows
// which conversations there are, and nothing else.
func runArchive(ctx context.Context, o options) error {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	objects, err := cluster.New(ctx, cfg, o.namespace, cluster.InNamespaces(splitList(o.namespaces)...),
		cluster.ConversationsOnly())
	if err != nil {
		return err
	}
	failed := make(chan error, 6)
	go func() { failed <- fmt.Errorf("watch the API server: %w", objects.Start(ctx)) }()
	store, err := keepArchive(ctx, o, objects, live.NewSigner(o.server.SigningKeyDir), failed)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	health := &http.Server{Addr: o.address, ReadHeaderTimeout: 10 * time.Second,
		Handler: server.Health(func(ctx context.Context) error {
			return errors.Join(objects.Ready(ctx), store.Ready(ctx))
		})}
	go func() { failed <- fmt.Errorf("serve health: %w", health.ListenAndServe()) }()
	serveMetrics(o.metricsAddress, failed)
	ctrl.Log.Info("keeping the archive", "address", o.archive.address)
	select {
	case err := <-failed:
		if ctx.Err() != nil {
			return nil
		}
		return err
	case <-ctx.Done():
	}
	// What is not acknowledged comes again.
	return nil
}

// keepOnlyWhatIsOwned deletes what is kept of a conversation with it, and sweeps up what was
// missed.
func keepOnlyWhatIsOwned(ctx context.Context, o options, store *archive.Store, objects *cluster.Cluster) {
	log := ctrl.Log.WithName("archive")
	slots := make(chan struct{}, deletions)
	err := objects.OnDeletion(ctx, func(uid string) {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			deleting, cancel := context.WithTimeout(ctx, deleteTimeout)
			defer cancel()
			if err := store.Delete(deleting, uid); err != nil {
				log.Error(err, "What is kept of a deleted conversation could not be deleted; the sweep will", "uid", uid)
			}
		}()
	})
	if err != nil {
		log.Error(err, "Deletions of conversations cannot be seen; the sweep finds what they leave")
	}
	for wait := sweepEvery; ; wait = sweepEvery {
		// Only with a full cache: what it lacks belongs to somebody all the same.
		if objects.Ready(ctx) == nil {
			sweep(ctx, o, store, objects)
		} else {
			wait = sweepAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// sweep up what belongs to no conversation, and see how much is kept of whom.
func sweep(ctx context.Context, o options, store *archive.Store, objects *cluster.Cluster) {
	log := ctrl.Log.WithName("archive")
	ownerOf := func(uid string) (string, error) { return objects.OwnerOf(ctx, uid) }
	if err := store.Measure(ctx, ownerOf); err != nil {
		log.Error(err, "How much is kept of each user could not be measured; what was known before counts")
	}
	removed, err := store.Sweep(ctx, func(uid string) bool {
		owner, err := ownerOf(uid)
		return owner != "" || err != nil
	}, o.archive.retention, time.Now())
	if err != nil {
		log.Error(err, "The archive could not be swept")
	} else if removed > 0 {
		log.Info("Removed what belonged to no conversation", "conversations", removed)
	}
}
