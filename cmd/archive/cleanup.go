package main

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/cmd/archive/store"
)

const (
	// sweepInterval is the interval of sweeps for data without a Conversation. sweepRetry is the
	// delay until the next sweep after a failed sweep.
	sweepInterval, sweepRetry = time.Hour, time.Minute
	// deleteTimeout limits the time to delete one Conversation's data. A later sweep deletes the
	// remaining data.
	deleteTimeout = 2 * time.Minute
	maxDeletions  = 4
)

// cleanUp deletes the data of each deleted Conversation and sweeps periodically for missed
// deletions.
func cleanUp(ctx context.Context, archive *store.Store, known *conversations, retention time.Duration) {
	log := ctrl.Log.WithName("cleanup")
	slots := semaphore.NewWeighted(maxDeletions)
	err := known.onDeletion(ctx, func(uid string) {
		go func() {
			if slots.Acquire(ctx, 1) != nil {
				return
			}
			defer slots.Release(1)
			deleting, cancel := context.WithTimeout(ctx, deleteTimeout)
			defer cancel()
			if err := archive.Delete(deleting, uid); err != nil {
				log.Error(err, "Cannot delete the data of a deleted Conversation; the next sweep retries", "uid", uid)
			}
		}()
	})
	if err != nil {
		log.Error(err, "Cannot watch for deleted Conversations; only sweeps delete their data")
	}
	for {
		wait := sweepRetry
		// Sweep only if the cache is complete. Otherwise, the sweep would treat Conversations that
		// are not in the cache yet as deleted.
		if known.ready(ctx) == nil {
			removed, err := archive.Sweep(ctx, func(uid string) (string, error) { return known.OwnerOf(ctx, uid) }, retention,
				time.Now())
			if err != nil {
				log.Error(err, "The sweep for orphaned data failed")
			} else {
				wait = sweepInterval
			}
			if removed > 0 {
				log.Info("Deleted orphaned data", "conversations", removed)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
