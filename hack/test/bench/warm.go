package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

// crowd is the number of objects that measureCrowd starts at the same time.
const crowd = 20

// measureBesidePeer measures the parts that compare Parley with agent-sandbox.
func measureBesidePeer(ctx context.Context, o options, r *report, chosen []string) error {
	for _, part := range []struct {
		name    string
		measure func(context.Context, options, *report) error
	}{{partWarm, measureWarm}, {partCold, measureCold}} {
		if !slices.Contains(chosen, part.name) {
			continue
		}
		say("%s", part.name)
		if err := part.measure(ctx, o, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// measureCold measures bursts without warm pods.
func measureCold(ctx context.Context, o options, r *report) error {
	peer := plan{audit: auditPolicyOfAll, peer: true}
	return compareBursts(ctx, o, r, partCold, []contender{
		{conversations, plan{audit: auditPolicyOfAll, keys: true}, ofConversations},
		{sandboxes, peer, func(_ context.Context, b *bed, _ int) (subject, error) { return b.sandboxes() }},
		{coldClaims, peer, func(ctx context.Context, b *bed, _ int) (subject, error) {
			return b.claims(coldClaims, true), b.createSandboxPool(ctx, 0)
		}},
	}, conversations, sandboxes, coldClaims)
}

// pool describes a warm pool and the objects that take pods from it. The functions of a pool get
// the test bed as an argument.
type pool struct {
	name    string
	plan    plan
	subject func(*bed) subject
	// fill creates the pool. ready returns the number of warm pods in it. taken returns the number
	// of objects that took a warm pod.
	fill         func(*bed, context.Context, int) error
	ready, taken func(*bed, context.Context) (int, error)
}

func pools() []pool {
	return []pool{
		{name: conversations, plan: plan{audit: auditPolicyOfAll, keys: true}, subject: (*bed).conversations,
			fill: (*bed).createWarmClass, ready: (*bed).readyWarmPods, taken: (*bed).warmConversations},
		{name: warmClaims, plan: plan{audit: auditPolicyOfAll, peer: true}, subject: (*bed).warmClaims,
			fill: (*bed).createSandboxPool, ready: (*bed).readySandboxes, taken: (*bed).claimedWarm},
	}
}

// warmResult is the result of one pool in one round. serial and crowd contain how long each
// Conversation took to become RUNNING, or each claim of agent-sandbox to become ready. For serial,
// these objects start one at a time; for crowd, several at a time.
type warmResult struct {
	serial, crowd []time.Duration
	// filled is the time until the pool was full. cold is the number of objects that got no warm
	// pod.
	filled time.Duration
	cold   int
	// spent is the CPU time of the processes during measureCrowd. asked counts the requests to the
	// API server in that time. Both include the refill of the pool.
	spent usage
	asked map[string]int
}

// measureWarm measures starts from each pool, in several rounds. Each round uses up a full pool two
// times: first with one start at a time, and then with several starts at a time.
func measureWarm(ctx context.Context, o options, r *report) error {
	of := map[string][]warmResult{}
	for turn := range o.turns {
		for _, p := range rotate(pools(), turn) {
			result, err := p.measure(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			say("%d %s: p50 %.1f ms, %d at a time %.1f ms; %d of them cold", o.pool, p.name,
				ms(percentile(result.serial, 50)), crowd, ms(percentile(result.crowd, 50)), result.cold)
			of[p.name] = append(of[p.name], result)
		}
	}
	reportWarm(r, o, of)
	return nil
}

func (p pool) measure(ctx context.Context, o options) (result warmResult, err error) {
	b, ctx, end, err := startBed(ctx, o, p.plan)
	if err != nil {
		return result, err
	}
	defer end()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // report the dead process
		}
	}()
	begin := time.Now()
	if err := p.fill(b, ctx, o.pool); err != nil {
		return result, err
	}
	if err := p.awaitFull(ctx, b, o.pool); err != nil {
		return result, err
	}
	result.filled = time.Since(begin)
	if _, err := p.start(ctx, b, "warm", warmUp, warmUp); err != nil {
		return result, err
	}
	if err := p.awaitFull(ctx, b, o.pool); err != nil {
		return result, err
	}
	if result.serial, err = p.start(ctx, b, "serial", o.pool, 1); err != nil {
		return result, err
	}
	if err := p.awaitFull(ctx, b, o.pool); err != nil {
		return result, err
	}
	if err := p.measureCrowd(ctx, b, o, &result); err != nil {
		return result, err
	}
	taken, err := p.taken(b, ctx)
	result.cold = warmUp + 2*o.pool - taken
	return result, err
}

func (p pool) measureCrowd(ctx context.Context, b *bed, o options, result *warmResult) error {
	before, err := b.usage()
	if err != nil {
		return err
	}
	asked, err := b.requests("")
	if err != nil {
		return err
	}
	if result.crowd, err = p.start(ctx, b, "crowd", o.pool, crowd); err != nil {
		return err
	}
	if err := p.awaitFull(ctx, b, o.pool); err != nil {
		return err
	}
	now, err := b.usage()
	if err != nil {
		return err
	}
	result.spent = now.since(before)
	result.asked, err = b.requests("")
	for what, count := range asked {
		result.asked[what] -= count
	}
	return err
}

// awaitFull waits until the pool is full and the processes are idle.
func (p pool) awaitFull(ctx context.Context, b *bed, size int) error {
	limited, cancel := context.WithTimeout(ctx, arrivalTimeout)
	defer cancel()
	if err := cluster.Retry(limited, pollInterval, func(ctx context.Context) error {
		ready, err := p.ready(b, ctx)
		if err == nil && ready < size {
			err = fmt.Errorf("%d of %d warm pods are ready", ready, size)
		}
		return err
	}); err != nil {
		return err
	}
	return b.awaitIdle(ctx)
}

// start creates count objects, at most atATime of them in parallel. It returns how long each object
// took to reach its final state.
func (p pool) start(ctx context.Context, b *bed, prefix string, count, atATime int) ([]time.Duration, error) {
	s := p.subject(b)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	arrived, err := watchArrivals(watching, s)
	if err != nil {
		return nil, err
	}
	took := make([]time.Duration, count)
	group, starting := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for i := range count {
		group.Go(func() error {
			name := fmt.Sprintf("%s-%05d", prefix, i)
			begin := time.Now()
			if err := s.create(starting, name); err != nil {
				return err
			}
			at, err := arrived.awaitOne(starting, name)
			took[i] = at.Sub(begin)
			return err
		})
	}
	return took, group.Wait()
}

func reportWarm(r *report, o options, of map[string][]warmResult) {
	part := fmt.Sprintf("%s: %d from a pool of as many warm pods, median of %d rounds", partWarm, o.pool, o.turns)
	row := func(what, unit string, value func(warmResult) float64) {
		var all []turns
		for _, name := range []string{conversations, warmClaims} {
			taken := turns{name: name}
			for _, result := range of[name] {
				taken.values = append(taken.values, value(result))
			}
			all = append(all, taken)
		}
		r.compareTurns(part, what, unit, all)
	}
	for _, p := range []int{50, 99} {
		row(fmt.Sprintf("one at a time, from the request until RUNNING, or ready: p%d", p), "ms",
			func(w warmResult) float64 { return ms(percentile(w.serial, p)) })
	}
	for _, p := range []int{50, 99} {
		row(fmt.Sprintf("%d at a time: p%d", crowd, p), "ms",
			func(w warmResult) float64 { return ms(percentile(w.crowd, p)) })
	}
	row("started without a warm pod", "", func(w warmResult) float64 { return float64(w.cold) })
	row("time until the pool is full", "s", func(w warmResult) float64 { return w.filled.Seconds() })
	for _, name := range watched[:len(watched)-1] {
		row(fmt.Sprintf("%d at a time and the refill: CPU time of %s", crowd, name), "s",
			func(w warmResult) float64 { return w.spent[name] / 1000 })
	}
	row(fmt.Sprintf("%d at a time and the refill: requests for each", crowd), "", func(w warmResult) float64 {
		all := 0
		for _, count := range w.asked {
			all += count
		}
		return float64(all) / float64(o.pool)
	})
}

func (b *bed) createWarmClass(ctx context.Context, size int) error {
	class := largeClass()
	if err := b.parley.Client.Get(ctx, client.ObjectKeyFromObject(class), class); err != nil {
		return err
	}
	class.Spec.Warm = &v1alpha1.WarmPods{Size: int32(size), NamespaceSelector: &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: benchNamespace}}}
	return b.parley.Client.Update(ctx, class)
}

func (b *bed) readyWarmPods(ctx context.Context) (int, error) {
	return b.warmPodsOf(ctx, "SessionClass")
}

func (b *bed) warmConversations(ctx context.Context) (int, error) {
	return b.warmPodsOf(ctx, "Conversation")
}

// warmPodsOf counts the ready pods that were created as warm pods and have an owner of this kind.
func (b *bed) warmPodsOf(ctx context.Context, kind string) (count int, err error) {
	pods := &corev1.PodList{}
	if err := b.parley.Client.List(ctx, pods, client.InNamespace(benchNamespace),
		client.HasLabels{v1alpha1.LabelWarm}); err != nil {
		return 0, err
	}
	for i := range pods.Items {
		if owner := metav1.GetControllerOfNoCopy(&pods.Items[i]); owner != nil && owner.Kind == kind &&
			isReady(&pods.Items[i]) {
			count++
		}
	}
	return count, nil
}

// createKeys creates a Secret of the user, and uses it for a model's key, a git token and an
// environment variable.
func (b *bed) createKeys(ctx context.Context, settings *v1alpha1.UserSettingsSpec) error {
	const name, model, token, variable = "keys", "model", "token", "variable"
	value := []byte(strings.Repeat("k", 100))
	settings.LLMModel = ptr.To("openai/small")
	settings.LLMAPIKeyRef = &v1alpha1.SecretKeyRef{Name: name, Key: model}
	settings.SecretsStore = &v1alpha1.SecretsStore{
		ProviderTokens: []v1alpha1.ProviderToken{{Provider: "github",
			TokenRef: &v1alpha1.SecretKeyRef{Name: name, Key: token}}},
		CustomSecrets: []v1alpha1.CustomSecret{{Name: "DEPLOY_KEY",
			SecretRef: v1alpha1.SecretKeyRef{Name: name, Key: variable}}},
	}
	return b.parley.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: name},
		Data: map[string][]byte{model: value, token: value, variable: value}})
}
