package node

import (
	"context"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// eagerInterval is the pause between probes while the container is not ready. A kubelet pauses
// longer.
const eagerInterval = 100 * time.Millisecond

// probe runs the container's probes and reports changes of readiness. It returns when the container
// must be restarted or the context has ended.
func (r *podRun) probe(ctx context.Context) {
	c := r.pod.Spec.Containers[0]
	if !r.untilStarted(ctx, c) {
		return
	}
	r.seen.started = true
	r.seen.ready = c.ReadinessProbe == nil
	r.report()
	ready, alive := newChecker(r.seen.address, c, c.ReadinessProbe), newChecker(r.seen.address, c, c.LivenessProbe)
	next := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		if was := r.seen.ready; c.ReadinessProbe != nil {
			if r.seen.ready = ready.passes(ctx, was); r.seen.ready != was && ctx.Err() == nil {
				r.report()
			}
		}
		if !alive.passes(ctx, true) && ctx.Err() == nil {
			return
		}
		next = time.Second
		if !r.seen.ready {
			next = eagerInterval
		}
	}
}

// untilStarted waits until the startup probe succeeds. It returns false if the probe does not
// succeed in time.
func (r *podRun) untilStarted(ctx context.Context, c corev1.Container) bool {
	if c.StartupProbe == nil {
		return true
	}
	budget := time.Duration(max(c.StartupProbe.PeriodSeconds, 1)*max(c.StartupProbe.FailureThreshold, 1)) * time.Second
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	return cluster.Retry(ctx, eagerInterval, probeOf(r.seen.address, c, c.StartupProbe)) == nil
}

// checker computes the result of a probe. While the result is a failure, each call of passes() runs
// the probe. While the result is a success, the probe runs at most once per period, and only
// several failures in a row (threshold) change the result.
type checker struct {
	ask       cluster.Probe // if nil, the result never changes
	period    time.Duration
	threshold int32
	failures  int32
	next      time.Time
}

func newChecker(address string, c corev1.Container, p *corev1.Probe) *checker {
	if p == nil {
		return &checker{}
	}
	return &checker{ask: probeOf(address, c, p), period: time.Duration(max(p.PeriodSeconds, 1)) * time.Second,
		threshold: max(p.FailureThreshold, 1)}
}

// passes returns the current result of the probe. The parameter before is the previous result.
func (c *checker) passes(ctx context.Context, before bool) bool {
	if c.ask == nil || before && time.Now().Before(c.next) {
		return before
	}
	c.next = time.Now().Add(c.period)
	if c.ask(ctx) == nil {
		c.failures = 0
		return true
	}
	c.failures++
	return before && c.failures < c.threshold
}

func probeOf(address string, c corev1.Container, p *corev1.Probe) cluster.Probe {
	if p.HTTPGet == nil {
		return func(context.Context) error { return nil }
	}
	port := p.HTTPGet.Port.IntVal
	for _, named := range c.Ports {
		if p.HTTPGet.Port.Type == intstr.String && named.Name == p.HTTPGet.Port.StrVal {
			port = named.ContainerPort
		}
	}
	return cluster.HTTPProbe("http://"+net.JoinHostPort(address, strconv.Itoa(int(port)))+p.HTTPGet.Path, nil)
}
