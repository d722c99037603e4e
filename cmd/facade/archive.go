package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/cmd/facade/archive"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/live"
)

const (
	// sweepEvery is how often it is looked for what belongs to no conversation.
	sweepEvery = time.Hour
	// deleteTimeout bounds the deletion of what is kept of one conversation. What it leaves the sweep finds.
	deleteTimeout = 2 * time.Minute
	// deletions is how many conversations' archives are deleted at once.
	deletions = 4
)

type archiveOptions struct {
	url, address string
	retention    time.Duration
}

// openArchive opens the archive, and serves sessions that hand over what they leave. It is nil where there is none.
func openArchive(ctx context.Context, o options, objects *cluster.Cluster, failed chan<- error) (*archive.Store, error) {
	if o.archive.url == "" {
		return nil, nil
	}
	store, err := archive.Open(ctx, o.archive.url)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", o.archive.address)
	if err != nil {
		return nil, fmt.Errorf("listen for sessions: %w", err)
	}
	listening := &http.Server{
		Handler:           archive.NewHandler(store, objects, live.NewSigner(o.server.SigningKeyDir).Public),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	go func() { failed <- fmt.Errorf("serve sessions: %w", listening.Serve(listener)) }()
	go keepOnlyWhatIsOwned(ctx, o, store, objects)
	return store, nil
}

// keepOnlyWhatIsOwned deletes what is kept of a conversation with it, and sweeps up what was missed.
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
	for {
		// Only with a full cache: what it lacks belongs to somebody all the same.
		if objects.Ready(ctx) == nil {
			removed, err := store.Sweep(ctx, func(uid string) bool {
				found, err := objects.HasConversation(ctx, uid)
				return found || err != nil
			}, o.archive.retention, time.Now())
			if err != nil {
				log.Error(err, "The archive could not be swept")
			} else if removed > 0 {
				log.Info("Removed what belonged to no conversation", "conversations", removed)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepEvery):
		}
	}
}
