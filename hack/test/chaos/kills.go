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
	// The pause between two kills is random, between these limits.
	shortestPause, longestPause = 100 * time.Millisecond, 1800 * time.Millisecond
	killsPerProgressLine        = 25
	// leaderMessage is the log message of a manager that becomes the leader.
	leaderMessage = "Successfully acquired lease"
	leaseName     = "parley-manager"
	leaderTimeout = 6 * time.Second
	leaseTimeout  = 10 * time.Second
)

// Names of killed processes.
const (
	managerLeads  = "manager, leading"
	managerWaits  = "manager, standby"
	managerShares = "manager, both leading"
	archiveVictim = "archive"
)

// killAtRandom kills one process after the other. Each killed process is restarted immediately. In
// the last third of the kills, both managers lead. If the run has warm pods, every second kill
// waits until a session claims a warm pod.
func (i *installation) killAtRandom(ctx context.Context, o options, r *report, claimed *claims,
	say func(format string, args ...any)) error {
	random := rand.New(rand.NewPCG(o.seed, 0))
	for n := range o.kills {
		if n == o.kills-o.kills/3 {
			say("from now on, both managers lead")
			i.electNoLeader()
		}
		if n > 0 && n%killsPerProgressLine == 0 {
			say("%d kills", n)
		}
		pause := shortestPause + time.Duration(random.Int64N(int64(longestPause-shortestPause)))
		if err := cluster.Sleep(ctx, pause); err != nil {
			return err
		}
		if o.killing.Err() != nil {
			say("interrupted after %d kills", n)
			break
		}
		// Most kills wait until the API server is ready, so that work happens between the kills.
		// Some kills happen while the API server starts.
		if random.IntN(4) > 0 {
			if err := i.apiServer.await(ctx); err != nil {
				return err
			}
		}
		name, victim := i.victim(ctx, random)
		aimed := o.pool > 0 && n%2 == 0 && claimed.await(ctx, random)
		leads := victim.hasLogged(leaderMessage)
		victim.kill()
		switch {
		case name != managerLeads:
		case i.bothLead:
			name = managerShares
		case !leads:
			name = managerWaits
		}
		r.kill(name, aimed)
		// Delete most Leases of killed leaders. To wait until each Lease expires would take too
		// long.
		if leads && random.IntN(8) > 0 {
			go i.takeLease(ctx, time.Now())
		}
	}
	for _, k := range i.processes() {
		r.endedByItself(k.Name, k.endedByItself())
	}
	return nil
}

// victim chooses the next process to kill. It chooses a manager only while a manager leads.
// Otherwise, no manager might live long enough to become the leader.
func (i *installation) victim(ctx context.Context, random *rand.Rand) (string, *supervised) {
	dice, replica := random.IntN(100), random.IntN(replicas)
	switch {
	case dice < 14:
		return "etcd", i.etcd
	case dice < 32:
		return "kube-apiserver", i.apiServer
	case dice < 74 && i.awaitLeader(ctx):
		return managerLeads, i.managers[replica]
	case dice < 82:
		return archiveVictim, i.archives[0]
	}
	return "facade", i.facades[replica]
}

// electNoLeader restarts the managers without leader election, so that both lead.
func (i *installation) electNoLeader() {
	i.bothLead = true
	for _, m := range i.managers {
		m.restartWith("--leader-elect=false")
	}
}

func (i *installation) awaitLeader(ctx context.Context) bool {
	if i.bothLead {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	return cluster.Retry(ctx, probeInterval, func(context.Context) error {
		for _, m := range i.managers {
			if m.hasLogged(leaderMessage) {
				return nil
			}
		}
		return errors.New("no manager leads")
	}) == nil
}

// takeLease deletes the Lease of a killed leader, as if it had expired.
func (i *installation) takeLease(ctx context.Context, killed time.Time) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	_ = cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		err := i.admin.Get(ctx, client.ObjectKey{Namespace: i.parley.Namespace(), Name: leaseName}, lease)
		if err != nil {
			return fmt.Errorf("read the lease: %w", err)
		}
		if renewed := lease.Spec.RenewTime; renewed != nil && renewed.After(killed) {
			return nil // another manager leads
		}
		return client.IgnoreNotFound(i.admin.Delete(ctx, lease, client.Preconditions{UID: &lease.UID,
			ResourceVersion: &lease.ResourceVersion}))
	})
}
