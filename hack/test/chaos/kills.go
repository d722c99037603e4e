package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	// The pause between two kills.
	shortestPause, longestPause = 100 * time.Millisecond, 1800 * time.Millisecond
	// progress is told after this many.
	progress = 25
	// acquired is what a manager prints when it becomes the leader.
	acquired  = "Successfully acquired lease"
	leaseName = "parley-manager"
	// leaderPatience is how long a leader is waited for to be killed.
	leaderPatience = 6 * time.Second
	// leasePatience is how long the lease of a dead leader is tried to be taken away.
	leasePatience = 10 * time.Second
)

// killAtRandom kills one process after the other, each started again at once.
func (i *installation) killAtRandom(ctx context.Context, o options, r *report, say func(format string,
	args ...any)) error {
	random := rand.New(rand.NewPCG(o.seed, 0))
	for n := range o.kills {
		if n > 0 && n%progress == 0 {
			say("%d kills", n)
		}
		if err := pause(ctx, shortestPause+time.Duration(random.Int64N(int64(longestPause-shortestPause)))); err != nil {
			return err
		}
		if o.killing.Err() != nil {
			say("%d kills are enough", n)
			break
		}
		// Mostly there is an API server, so that things happen between the kills; some come while
		// it starts.
		if random.IntN(4) > 0 {
			if err := i.apiServer.await(ctx); err != nil {
				return err
			}
		}
		name, victim := i.victim(ctx, random)
		leads := victim.said(acquired)
		victim.kill()
		if name == "manager" {
			name += map[bool]string{true: ", leading", false: ", standby"}[leads]
		}
		r.kill(name)
		// A lease is left to run out now and then. To wait that long each time would be a test of a
		// clock.
		if leads && random.IntN(8) > 0 {
			go i.takeLease(ctx, time.Now())
		}
	}
	for _, k := range i.processes() {
		r.endedByItself(k.Name, k.endedByItself())
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// victim of the next kill. Managers are spared while none of them leads: else none ever would.
func (i *installation) victim(ctx context.Context, random *rand.Rand) (string, *kept) {
	dice, replica := random.IntN(100), random.IntN(replicas)
	switch {
	case dice < 14:
		return "etcd", i.etcd
	case dice < 32:
		return "kube-apiserver", i.apiServer
	case dice < 74 && i.awaitLeader(ctx):
		return "manager", i.managers[replica]
	}
	return "facade", i.facades[replica]
}

// awaitLeader for a while, and say whether there is one.
func (i *installation) awaitLeader(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	return cluster.Retry(ctx, probeInterval, func(context.Context) error {
		for _, m := range i.managers {
			if m.said(acquired) {
				return nil
			}
		}
		return errors.New("no manager leads")
	}) == nil
}

// takeLease removes the lease of a leader that was killed, as if it had run out.
func (i *installation) takeLease(ctx context.Context, killed time.Time) {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	_ = cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		err := i.admin.Get(ctx, client.ObjectKey{Namespace: i.parley.Namespace(), Name: leaseName}, lease)
		if err != nil {
			return fmt.Errorf("read the lease: %w", err)
		}
		if renewed := lease.Spec.RenewTime; renewed != nil && renewed.After(killed) {
			return nil // another one leads
		}
		return client.IgnoreNotFound(i.admin.Delete(ctx, lease, client.Preconditions{UID: &lease.UID,
			ResourceVersion: &lease.ResourceVersion}))
	})
}
