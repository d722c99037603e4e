package main

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/cmd/archive/store"
)

const (
	// sweepInterval is how often orphans are looked for, sweepRetry how soon after a failure.
	sweepInterval, sweepRetry = time.Hour, time.Minute
	// deleteTimeout bounds the deletion of one Conversation's archive. A sweep finds what is left.
	deleteTimeout = 2 * time.Minute
	// deletions is how many archives are deleted at once.
	deletions = 4
)

// cleanUp deletes the archive of each Conversation that is deleted, and sweeps up what was missed.
func cleanUp(ctx context.Context, kept *store.Store, known *conversations, retention time.Duration) {
	log := ctrl.Log.WithName("cleanup")
	slots := semaphore.NewWeighted(deletions)
	err := known.onDeletion(ctx, func(uid string) {
		go func() {
			if slots.Acquire(ctx, 1) != nil {
				return
			}
			defer slots.Release(1)
			deleting, cancel := context.WithTimeout(ctx, deleteTimeout)
			defer cancel()
			if err := kept.Delete(deleting, uid); err != nil {
				log.Error(err, "The archive of a deleted Conversation could not be deleted; the next sweep will", "uid", uid)
			}
		}()
	})
	if err != nil {
		log.Error(err, "Deletions of Conversations cannot be watched; sweeps find what they leave")
	}
	for {
		wait := sweepRetry
		// A cache that is not complete lacks owners.
		if known.ready(ctx) == nil {
			removed, err := kept.Sweep(ctx, func(uid string) (string, error) { return known.OwnerOf(ctx, uid) }, retention,
				time.Now())
			if err != nil {
				log.Error(err, "The archive could not be swept")
			} else {
				wait = sweepInterval
			}
			if removed > 0 {
				log.Info("Deleted archives without a Conversation", "conversations", removed)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
