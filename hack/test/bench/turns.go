package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/parley-dev/parley/hack/local/parley"
)

// contender is one of the systems that the benchmarks "burst" and "cold" compare. Its plan
// describes its clusters.
type contender struct {
	name    string
	plan    plan
	subject func(ctx context.Context, b *bed, clients int) (subject, error)
}

func contenders() []contender {
	bare := plan{audit: auditPolicyOfAll, bare: true}
	return []contender{
		{barePods, bare, func(_ context.Context, b *bed, _ int) (subject, error) { return b.barePods(), nil }},
		{sessionPods, bare, func(_ context.Context, b *bed, _ int) (subject, error) { return b.sessionPods() }},
		{minimalObjects, bare, func(ctx context.Context, b *bed, clients int) (subject, error) {
			return b.minimalObjects(ctx, clients)
		}},
		{conversations, plan{audit: auditPolicyOfAll}, ofConversations},
	}
}

func ofConversations(_ context.Context, b *bed, _ int) (subject, error) {
	return b.conversations(), nil
}

// rotate rotates a list by one more position in each round. Each contender thus has each position
// equally often. If the machine slows down, all contenders are affected alike.
func rotate[T any](all []T, turn int) []T {
	first := turn % len(all)
	return slices.Concat(all[first:], all[:first])
}

type burstResult struct {
	outcome
	asked map[string]int
}

func measureBurst(ctx context.Context, o options, r *report) error {
	return compareBursts(ctx, o, r, partBurst, contenders(), conversations, barePods, sessionPods, minimalObjects)
}

// compareBursts measures all contenders. It reports the named contenders, and compares the first of
// them with the others.
func compareBursts(ctx context.Context, o options, r *report, part string, all []contender, names ...string) error {
	of := map[string][]burstResult{}
	for turn := range o.turns {
		for _, c := range rotate(all, turn) {
			b, err := c.measure(ctx, o, turn)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			say("%d %s in %.1f s, half of them within %.1f s", o.burst, c.name, b.took.Seconds(), b.median.Seconds())
			of[c.name] = append(of[c.name], b)
		}
	}
	reportBursts(r, o, part, names, of)
	return nil
}

func (c contender) measure(ctx context.Context, o options, turn int) (result burstResult, err error) {
	b, ctx, end, err := startBed(ctx, o, c.plan)
	if err != nil {
		return result, err
	}
	defer end()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // report the dead process
		}
	}()
	s, err := c.subject(ctx, b, o.clients)
	if err != nil {
		return result, err
	}
	if _, err := b.makeMany(ctx, s, "warm-burst", warmUp, o.clients); err != nil {
		return result, err
	}
	before, err := b.requests("")
	if err != nil {
		return result, err
	}
	if o.profile != "" {
		defer b.profile(ctx, o.profile, fmt.Sprintf("%s %d", c.name, turn+1))()
	}
	if result.outcome, err = b.makeMany(ctx, s, "burst", o.burst, o.clients); err != nil {
		return result, err
	}
	result.asked, err = b.requests("")
	for what, count := range before {
		result.asked[what] -= count
	}
	return result, err
}

func reportBursts(r *report, o options, part string, names []string, of map[string][]burstResult) {
	part = fmt.Sprintf("%s: %d at once by %d clients, median of %d bursts", part, o.burst, o.clients, o.turns)
	each := float64(o.burst)
	report := func(what, unit string, value func(burstResult) float64) {
		var all []turns
		for _, name := range names {
			taken := turns{name: name}
			for _, b := range of[name] {
				taken.values = append(taken.values, value(b))
			}
			all = append(all, taken)
		}
		r.compareTurns(part, what, unit, all)
	}
	report("until the last one is RUNNING, or ready", "s", func(b burstResult) float64 { return b.took.Seconds() })
	report("median from its creation until one is RUNNING, or ready", "s",
		func(b burstResult) float64 { return b.median.Seconds() })
	for _, name := range watched {
		report("CPU time of "+name, "s", func(b burstResult) float64 { return b.spent[name] / 1000 })
	}
	report("CPU time of all processes except this program", "s", func(b burstResult) float64 {
		return (b.spent[apiServer] + b.spent[etcd] + b.spent[controllerManager] + b.spent[parley.Manager] +
			b.spent[sandboxController]) / 1000
	})
	report("memory "+apiServer+" allocates for each", "KiB",
		func(b burstResult) float64 { return b.allocated / each / 1024 })
	asked := map[string]bool{}
	for _, bouts := range of {
		for _, b := range bouts {
			for what, count := range b.asked {
				asked[what] = asked[what] || count >= max(1, o.burst/100) // rarer requests have other causes
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(asked)) {
		if asked[what] {
			report("requests for each: "+what, "", func(b burstResult) float64 { return float64(b.asked[what]) / each })
		}
	}
	report("requests for each, total", "", func(b burstResult) float64 {
		all := 0
		for _, count := range b.asked {
			all += count
		}
		return float64(all) / each
	})
}
