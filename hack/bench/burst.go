package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/hack/bench/process"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/testenv"
)

const (
	// warm are made first and not counted: connections, caches, compiled rules.
	warm = 20
	// after is for how long after the last one what it costs is still counted.
	after = time.Second
	// lull is a time in which the processes use less CPU time than murmur, in ms, where nothing is asked of them.
	lull         = time.Second
	murmur       = 100
	calmPatience = time.Minute
)

// watched are the processes whose CPU time is told. The last one is this program, its clients and its kubelet.
var watched = []string{apiServer, etcd, parley.Manager, controllerManager, self}

const self = "this program"

// usage is the CPU time of each process, in ms.
type usage map[string]float64

func (b *bed) usage() (usage, error) {
	taken := usage{}
	for _, name := range watched {
		pid := os.Getpid()
		if name != self {
			pid = b.supervisor.PID(name)
		}
		sample, err := process.Look(pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		taken[name] = sample.CPU
	}
	return taken, nil
}

func (u usage) since(before usage) usage {
	spent := maps.Clone(u)
	for name := range spent {
		spent[name] -= before[name]
	}
	return spent
}

// calm waits until the processes have nothing more to do, or at least for a while.
func (b *bed) calm(ctx context.Context) error {
	for end := time.Now().Add(calmPatience); ctx.Err() == nil && time.Now().Before(end); {
		before, err := b.usage()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(lull):
		}
		now, err := b.usage()
		if err != nil {
			return err
		}
		spent := now.since(before)
		if spent[apiServer] < murmur && spent[parley.Manager] < murmur && spent[controllerManager] < murmur {
			return nil
		}
	}
	return context.Cause(ctx)
}

// outcome of a burst.
type outcome struct {
	took  time.Duration
	spent usage
}

// makeMany makes several at once until each of them is where it is to be.
func (b *bed) makeMany(ctx context.Context, s subject, prefix string, count, clients int) (o outcome, err error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	arrived, err := watchArrivals(watching, s)
	if err != nil {
		return o, err
	}
	if err := b.calm(ctx); err != nil {
		return o, err
	}
	known := arrived.count() // those of earlier parts, which the watch began with
	before, err := b.usage()
	if err != nil {
		return o, err
	}
	begin := time.Now()
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range count {
		group.Go(func() error { return s.create(creating, fmt.Sprintf("%s-%05d", prefix, i)) })
	}
	if err := group.Wait(); err != nil {
		return o, err
	}
	if err := arrived.awaitCount(ctx, known+count); err != nil {
		return o, err
	}
	o.took = arrived.latest().Sub(begin)
	select {
	case <-ctx.Done():
		return o, context.Cause(ctx)
	case <-time.After(after):
	}
	now, err := b.usage()
	o.spent = now.since(before)
	return o, err
}

// removePods makes room again.
func (b *bed) removePods(ctx context.Context) error {
	pods := b.userPods.CoreV1().Pods(benchNamespace)
	only := metav1.ListOptions{LabelSelector: "app=bare"}
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, only); err != nil {
		return err
	}
	return cluster.Retry(ctx, lull, func(ctx context.Context) error {
		left, err := pods.List(ctx, only)
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(left.Items))
		}
		return err
	})
}

// requests of the manager so far; a watch counts once, when it begins.
func (b *bed) requests() (map[string]int, error) {
	log, err := os.Open(b.auditLog())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	counted := map[string]int{}
	for _, r := range testenv.ReadAuditLog(io.Reader(log), managerUser) {
		if (r.Stage == "ResponseStarted") != (r.Verb == "watch") {
			continue
		}
		what := r.Verb + " " + r.Object.Resource
		if r.Object.Subresource != "" {
			what += "/" + r.Object.Subresource
		}
		if r.Status.Code >= 400 {
			what += fmt.Sprintf(" (%d)", r.Status.Code)
		}
		counted[what]++
	}
	return counted, nil
}

func burst(ctx context.Context, b *bed, o options, r *report) error {
	of := map[string]outcome{}
	var asked map[string]int
	for _, s := range []subject{b.barePods(), b.conversations()} {
		if _, err := b.makeMany(ctx, s, "warm-burst", warm, o.clients); err != nil {
			return err
		}
		before, err := b.requests()
		if err != nil {
			return err
		}
		var profiling func()
		if b.profiled != nil {
			profiling = b.profiled.begin(ctx, b, s.name)
		}
		out, err := b.makeMany(ctx, s, "burst", o.burst, o.clients)
		if profiling != nil {
			profiling()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		say("%d %s in %.1f s", o.burst, s.name, out.took.Seconds())
		of[s.name] = out
		if asked, err = b.requests(); err != nil {
			return err
		}
		for what, count := range before {
			asked[what] -= count
		}
		if s.name == b.barePods().name {
			if err := b.removePods(ctx); err != nil {
				return err
			}
		}
	}
	ours, bare := of[b.conversations().name], of[b.barePods().name]
	part := fmt.Sprintf("%s: %d at once by %d clients", partBurst, o.burst, o.clients)
	r.compare(part, "until the last one is RUNNING, or ready", "s", ours.took.Seconds(), bare.took.Seconds())
	for _, name := range watched {
		r.compare(part, "CPU time of "+name, "s", ours.spent[name]/1000, bare.spent[name]/1000)
	}
	all := 0
	for _, what := range slices.Sorted(maps.Keys(asked)) {
		if asked[what] >= max(1, o.burst/100) { // what is rarer belongs to no Conversation
			r.add(part, "the manager's requests for each: "+what, "", float64(asked[what])/float64(o.burst))
		}
		all += asked[what]
	}
	r.add(part, "the manager's requests for each, all", "", float64(all)/float64(o.burst))
	return nil
}
