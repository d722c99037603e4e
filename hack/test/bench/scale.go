package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
)

// The manager has reconciled everything when it has been idle for this time.
const idle = 2 * time.Second

func measureScale(ctx context.Context, b *bed, o options, r *report) error {
	part := fmt.Sprintf("%s: %d running Conversations", partScale, o.live)
	var there v1alpha1.ConversationList
	if err := b.user.List(ctx, &there, client.InNamespace(benchNamespace)); err != nil {
		return err
	}
	if more := o.live - len(there.Items); more > 0 {
		out, err := b.makeMany(ctx, b.conversations(), "live", more, o.clients)
		if err != nil {
			return err
		}
		r.add(part, fmt.Sprintf("until the last %d are RUNNING", more), "s", out.took.Seconds())
		for _, name := range watched {
			r.add(part, "CPU time of "+name, "s", out.spent[name]/1000)
		}
	}
	if err := b.awaitIdle(ctx); err != nil {
		return err
	}
	if err := b.memories(o, r, part, "after their creation"); err != nil {
		return err
	}
	if err := b.readAll(ctx, o, r, part); err != nil {
		return err
	}
	if err := b.restart(ctx, o, r, part); err != nil {
		return err
	}
	return b.memories(o, r, part, "after a restart")
}

// memories reports the anonymous memory of the manager and the facade. Memory of the program files
// does not count, because the kernel shares it and can free it.
func (b *bed) memories(o options, r *report, part, when string) error {
	for _, name := range []string{parley.Manager, parley.Facade} {
		now, err := sampleOf(b.supervisor.PID(name))
		if err != nil {
			return err
		}
		what := fmt.Sprintf("memory of %s %s (RssAnon)", name, when)
		r.add(part, what, "MiB", now.memory)
		r.add(part, what+", per Conversation", "KiB", (now.memory-b.empty[name].memory)*1024/float64(o.live))
	}
	return nil
}

// sampleEmpty records the usage of the manager and the facade before any Conversation exists.
func (b *bed) sampleEmpty(ctx context.Context) error {
	if err := b.awaitIdle(ctx); err != nil {
		return err
	}
	b.empty = map[string]sample{}
	for _, name := range []string{parley.Manager, parley.Facade} {
		var err error
		if b.empty[name], err = sampleOf(b.supervisor.PID(name)); err != nil {
			return err
		}
	}
	return nil
}

// readAll measures reads of one conversation and of one page of conversations over HTTP. It
// compares them with reads of the same number of pods from the API server.
func (b *bed) readAll(ctx context.Context, o options, r *report, part string) error {
	const page = 20
	pods := b.userPods.CoreV1().Pods(benchNamespace)
	first, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	name := first.Items[0].Name
	connection := newConnection()
	for _, c := range []struct {
		what, path string
		directly   operation
	}{
		{"read a conversation over HTTP, compared with a pod, p50",
			"/" + strings.TrimSuffix(name, v1alpha1.SessionName("")), func(ctx context.Context) error {
				_, err := pods.Get(ctx, name, metav1.GetOptions{})
				return err
			}},
		{fmt.Sprintf("read the newest %d conversations over HTTP, compared with %d pods, p50", page, page),
			fmt.Sprintf("?limit=%d", page), func(ctx context.Context) error {
				_, err := pods.List(ctx, metav1.ListOptions{Limit: page})
				return err
			}},
	} {
		url := b.parley.FacadeURL() + "/api/conversations" + c.path
		ours, err := measure(func(ctx context.Context) error {
			var shown any
			return parley.Send(ctx, connection, http.MethodGet, url, b.key, nil, &shown)
		}, 1, o.round)
		if err != nil {
			return err
		}
		baseline, err := measure(c.directly, 1, o.round)
		if err != nil {
			return err
		}
		r.compare(part, c.what, "ms", ms(percentile(ours, 50)), ms(percentile(baseline, 50)))
	}
	return nil
}

// restart restarts the manager while no object changes, and measures its work.
func (b *bed) restart(ctx context.Context, o options, r *report, part string) error {
	b.supervisor.End(parley.Manager)
	before, err := b.requests(managerUser)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := b.startManager(ctx); err != nil {
		return err
	}
	ready := time.Since(begin)
	spent, lasted, err := b.settle(ctx, begin)
	if err != nil {
		return err
	}
	asked, err := b.requests(managerUser)
	if err != nil {
		return err
	}
	went, err := b.reconciles(ctx)
	if err != nil {
		return err
	}
	if went < o.live {
		return fmt.Errorf("the manager has reconciled only %d Conversations", went)
	}
	reads, writes := 0, 0
	for what, count := range asked {
		verb, _, _ := strings.Cut(what, " ")
		if count -= before[what]; slices.Contains([]string{"get", "list", "watch"}, verb) {
			reads += count
		} else if count > 0 {
			say("requests of the restarted manager: %s, %d times", what, count)
			writes += count
		}
	}
	r.add(part, "manager restart: until it is ready", "s", ready.Seconds())
	r.add(part, "manager restart: until it has reconciled all", "s", lasted.Seconds())
	r.add(part, "manager restart: CPU time", "s", spent/1000)
	r.add(part, "manager restart: reads", "", float64(reads))
	r.add(part, "manager restart: writes", "", float64(writes))
	return nil
}

// settle waits until the manager is idle. It returns the manager's CPU time in ms, and the duration
// from begin until the manager became idle.
func (b *bed) settle(ctx context.Context, begin time.Time) (spent float64, lasted time.Duration, err error) {
	last, since := 0.0, time.Now()
	for ctx.Err() == nil {
		now, err := sampleOf(b.supervisor.PID(parley.Manager))
		if err != nil {
			return 0, 0, err
		}
		if now.cpu-last > idleCPU/2 {
			last, since = now.cpu, time.Now()
		}
		if time.Since(since) > idle {
			return now.cpu, since.Sub(begin), nil
		}
		_ = cluster.Sleep(ctx, pollInterval)
	}
	return 0, 0, context.Cause(ctx)
}

func (b *bed) reconciles(ctx context.Context) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.parley.ManagerMetrics(), http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+b.token)
	// The manager serves metrics with a self-signed certificate.
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}}
	answer, err := insecure.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the manager's metrics: %s", answer.Status)
	}
	return sumOf(answer.Body, "controller_runtime_reconcile_total{controller=\"conversation\"")
}

func sumOf(metrics io.Reader, prefix string) (int, error) {
	sum := 0
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), prefix) {
			continue
		}
		fields := strings.Fields(lines.Text())
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, err
		}
		sum += int(value)
	}
	return sum, lines.Err()
}
