package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	// warmUp is the number of objects created before a measurement. They open connections, fill
	// caches and compile rules.
	warmUp = 20
	// The measurement of CPU time and requests ends this long after the last object became ready.
	countedAfter = time.Second
	// A process is idle if it used less than idleCPU milliseconds of CPU time during idleWindow.
	idleWindow  = time.Second
	idleCPU     = 100
	idleTimeout = time.Minute
)

// watched lists the processes whose CPU time is reported. The entry self is this program, which
// runs the clients and the fake kubelet.
var watched = []string{apiServer, etcd, parley.Manager, sandboxController, controllerManager, self}

const self = "this program"

// usage contains the CPU time of each process in ms.
type usage map[string]float64

func (b *bed) usage() (usage, error) {
	taken := usage{}
	for _, name := range watched {
		pid := os.Getpid()
		if name != self {
			pid = b.supervisor.PID(name)
		}
		if pid == 0 {
			continue // this cluster has no such process
		}
		sample, err := sampleOf(pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		taken[name] = sample.cpu
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

// awaitIdle waits until the processes are idle, but at most for idleTimeout.
func (b *bed) awaitIdle(ctx context.Context) error {
	for end := time.Now().Add(idleTimeout); ctx.Err() == nil && time.Now().Before(end); {
		before, err := b.usage()
		if err != nil {
			return err
		}
		_ = cluster.Sleep(ctx, idleWindow)
		now, err := b.usage()
		if err != nil {
			return err
		}
		spent := now.since(before)
		if max(spent[apiServer], spent[parley.Manager], spent[sandboxController], spent[controllerManager]) < idleCPU {
			return nil
		}
	}
	return context.Cause(ctx)
}

type outcome struct {
	took time.Duration
	// median is the median time from the creation of an object to its final state.
	median    time.Duration
	spent     usage
	allocated float64 // by the API server, in bytes
}

// makeMany creates many objects concurrently and waits until each has reached its final state.
func (b *bed) makeMany(ctx context.Context, s subject, prefix string, count, clients int) (o outcome, err error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	arrived, err := watchArrivals(watching, s)
	if err != nil {
		return o, err
	}
	if err := b.awaitIdle(ctx); err != nil {
		return o, err
	}
	known := arrived.count() // objects of earlier parts
	allocated, err := b.allocated(ctx)
	if err != nil {
		return o, err
	}
	before, err := b.usage()
	if err != nil {
		return o, err
	}
	begin, created := time.Now(), make([]time.Time, count)
	name := func(i int) string { return fmt.Sprintf("%s-%05d", prefix, i) }
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range count {
		group.Go(func() error {
			created[i] = time.Now()
			return s.create(creating, name(i))
		})
	}
	if err := group.Wait(); err != nil {
		return o, err
	}
	if err := arrived.awaitCount(ctx, known+count); err != nil {
		return o, err
	}
	o.took = arrived.latest().Sub(begin)
	times := make([]time.Duration, count)
	for i := range times {
		at, err := arrived.awaitOne(ctx, name(i))
		if err != nil {
			return o, err
		}
		times[i] = at.Sub(created[i])
	}
	slices.Sort(times)
	o.median = times[count/2]
	if err := cluster.Sleep(ctx, countedAfter); err != nil {
		return o, err
	}
	now, err := b.usage()
	if err != nil {
		return o, err
	}
	o.spent = now.since(before)
	o.allocated, err = b.allocated(ctx)
	o.allocated -= allocated
	return o, err
}

// allocated returns the number of bytes that the API server has allocated since its start.
func (b *bed) allocated(ctx context.Context) (float64, error) {
	admin, err := kubernetes.NewForConfig(b.admin)
	if err != nil {
		return 0, err
	}
	text, err := admin.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("the API server's metrics: %w", err)
	}
	sum, err := sumOf(bytes.NewReader(text), "go_memstats_alloc_bytes_total")
	if err == nil && sum == 0 {
		err = errors.New("the API server has no metric of its allocations")
	}
	return float64(sum), err
}

func (b *bed) removePods(ctx context.Context) error {
	pods := b.userPods.CoreV1().Pods(benchNamespace)
	only := metav1.ListOptions{LabelSelector: "app=bare"}
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, only); err != nil {
		return err
	}
	return cluster.Retry(ctx, idleWindow, func(ctx context.Context) error {
		left, err := pods.List(ctx, only)
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods still exist", len(left.Items))
		}
		return err
	})
}

// requests returns how often a user sent each kind of request, from the audit log. An empty name
// stands for all users.
func (b *bed) requests(user string) (map[string]int, error) {
	log, err := os.Open(b.auditLog())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return tally(testenv.ReadAuditLog(log, user)), nil
}

// tally counts requests by verb and resource. It counts a watch when the watch begins.
func tally(requests []testenv.Request) map[string]int {
	counted := map[string]int{}
	for _, r := range requests {
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
	return counted
}
