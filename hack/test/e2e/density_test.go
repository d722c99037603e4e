package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	idleSessions = 100
	// idlePool is the number of warm pods that are ready before all sessions wake.
	idlePool   = 20
	idleWindow = time.Minute
	// Memory has settled when it decreases by less than 1% in settleWindow.
	settleWindow   = 5 * time.Second
	ticksPerSecond = 100
)

// hundredIdle measures the memory and the CPU usage of idle sessions, and how long it takes to wake
// all of them.
func hundredIdle(t *t) {
	if t.samples == 0 {
		t.Skip("make e2e-warm measures idle sessions")
	}
	s := t.newStarts()
	const class = "density"
	defer t.makeClass(class, func(spec *v1alpha1.SessionClassSpec) {
		allowMany(spec)
		spec.Images.Runtime = v1alpha1.RuntimeMount
	})()
	var names []string
	for i := range idleSessions {
		names = append(names, fmt.Sprintf("idle-%d", i))
	}
	all := func(atATime int, do func(ctx context.Context, name string) error) time.Duration {
		began := time.Now()
		group, ctx := errgroup.WithContext(t.ctx)
		group.SetLimit(atATime)
		for _, name := range names {
			group.Go(func() error { return do(ctx, name) })
		}
		t.must(group.Wait())
		return time.Since(began)
	}
	free := availableMemory()
	all(5, func(ctx context.Context, name string) error {
		if err := s.create(nil, false)(ctx, class, name); err != nil {
			return err
		}
		_, err := s.running.await(ctx, attemptKey(name, 1))
		return err
	})
	s.reportUsage("without a turn yet", free)
	all(5, func(ctx context.Context, name string) error {
		if err := s.message(ctx, name, 1); err != nil {
			return err
		}
		_, err := s.model.called.await(ctx, turnOf(name, 1))
		return err
	})
	s.reportUsage("after a turn", free)
	all(10, s.stopSession)
	t.Logf("all %d sessions are stopped; available memory of the machine %+.0f MiB", idleSessions,
		availableMemory()-free)
	s.wakeAll(class, all)
}

func (s *starts) message(ctx context.Context, name string, turn int) error {
	return s.send(ctx, "/api/conversations/"+name+"/message", map[string]string{"message": task(name, turn)})
}

func (s *starts) wakeAll(class string, all func(int, func(context.Context, string) error) time.Duration) {
	c := &v1alpha1.SessionClass{}
	s.must(s.client.Get(s.ctx, client.ObjectKey{Name: class}, c))
	before := c.DeepCopy()
	c.Spec.Warm = &v1alpha1.WarmPods{Size: idlePool, NamespaceSelector: ofNamespace(s.user.namespace)}
	s.must(s.client.Patch(s.ctx, c, client.MergeFrom(before)))
	s.must(s.awaitPool(class, idlePool))
	awaitIdleNode(s.ctx)
	began := time.Now()
	times := make(chan startTimes, idleSessions)
	whole := all(idleSessions, func(ctx context.Context, name string) error {
		if err := s.message(ctx, name, 2); err != nil {
			return err
		}
		running, err := s.running.await(ctx, attemptKey(name, 2))
		if err != nil {
			return err
		}
		called, err := s.model.called.await(ctx, turnOf(name, 2))
		times <- startTimes{running: []time.Duration{running.Sub(began)}, called: []time.Duration{called.Sub(began)}}
		return err
	})
	close(times)
	var each startTimes
	for one := range times {
		each.running, each.called = append(each.running, one.running...), append(each.called, one.called...)
	}
	s.Logf("waking all %d sessions with a pool of %d: RUNNING p50 %s, last %s; first tool call p50 %s, last %s; whole %s",
		idleSessions, idlePool, percentile(each.running, 50), percentile(each.running, 100), percentile(each.called, 50),
		percentile(each.called, 100), whole)
}

// sessionUsage is the usage of all processes of sessions: PSS in KiB and CPU time in ticks.
type sessionUsage struct {
	pods, processes int
	memory, ticks   float64
}

var podOfCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_0-9a-f]{28})`)

// sessionUsage returns the usage of all sessions. It reads /proc one time for all pods.
func (s *starts) sessionUsage() (u sessionUsage) {
	pods := &corev1.PodList{}
	s.must(s.client.List(s.ctx, pods, client.InNamespace(s.user.namespace),
		client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentSession}))
	ours := map[types.UID]bool{}
	for i := range pods.Items {
		ours[pods.Items[i].UID] = true
	}
	u.pods = len(ours)
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		found := podOfCgroup.FindSubmatch(content)
		if found == nil || !ours[types.UID(strings.ReplaceAll(string(found[1]), "_", "-"))] {
			continue
		}
		dir := filepath.Dir(file)
		if command, _ := os.ReadFile(filepath.Join(dir, "cmdline")); string(command) == "/pause\x00" {
			continue
		}
		u.processes++
		rollup, _ := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		_, pss, _ := strings.Cut(string(rollup), "\nPss:")
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		var memory, user, system float64
		if len(fields) > 12 {
			_, _ = fmt.Sscan(pss+" 0", &memory)
			_, _ = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
		}
		u.memory, u.ticks = u.memory+memory, u.ticks+user+system
	}
	return u
}

// reportUsage waits until the memory has settled, and prints the usage of all sessions.
func (s *starts) reportUsage(when string, free float64) {
	now := s.sessionUsage()
	for last := now.memory * 2; now.memory < last*0.99; now = s.sessionUsage() {
		last = now.memory
		s.must(cluster.Sleep(s.ctx, settleWindow))
	}
	idle, total := cpuTimes()
	before := s.sessionUsage()
	s.must(cluster.Sleep(s.ctx, idleWindow))
	after := s.sessionUsage()
	idleNow, totalNow := cpuTimes()
	cores := float64(ticksPerSecond) * idleWindow.Seconds()
	s.Logf("%d idle sessions %s: %.1f MiB each in %.1f processes (PSS); CPU %.3f cores in all, %.1f ms per second each; "+
		"the whole machine is %.0f%% idle and has %.0f MiB less memory than before", after.pods, when,
		after.memory/1024/float64(after.pods), float64(after.processes)/float64(after.pods), (after.ticks-before.ticks)/cores,
		(after.ticks-before.ticks)/cores*1000/float64(after.pods), 100*(idleNow-idle)/(totalNow-total),
		free-availableMemory())
}

// availableMemory returns the machine's available memory in MiB.
func availableMemory() float64 {
	content, _ := os.ReadFile("/proc/meminfo")
	_, after, _ := strings.Cut(string(content), "MemAvailable:")
	var kib float64
	_, _ = fmt.Sscan(after, &kib)
	return kib / 1024
}
