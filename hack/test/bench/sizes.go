package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/bench/process"
)

// As much as the schema takes: with two texts and 16 images this is half a MiB.
const (
	largeText  = 131072
	largeImage = 16384
	images     = 16
	// fewClients make them: each request takes the API server and the webhook long.
	fewClients = 4
)

func smallSpec() v1alpha1.ConversationSpec {
	return v1alpha1.ConversationSpec{UserSettingsName: userName, InitialUserMsg: ptr.To(strings.Repeat("x", 100))}
}

func largeSpec() v1alpha1.ConversationSpec {
	spec := smallSpec()
	spec.InitialUserMsg, spec.ConversationInstructions = ptr.To(strings.Repeat("x", largeText)),
		ptr.To(strings.Repeat("y", largeText))
	for i := range images {
		prefix := fmt.Sprintf("data:image/png;base64,%04d", i)
		spec.ImageURLs = append(spec.ImageURLs, prefix+strings.Repeat("A", (largeImage-len(prefix))/4*4))
	}
	return spec
}

// sizes measures what large Conversations cost the manager beside small ones, of those that wait
// and of those that run. Each measurement has a cluster of its own.
func sizes(ctx context.Context, o options, r *report) error {
	for _, state := range []v1alpha1.ConversationState{v1alpha1.StateStopped, v1alpha1.StateRunning} {
		var both [2]sized
		for i, spec := range []v1alpha1.ConversationSpec{smallSpec(), largeSpec()} {
			spec.Suspend = state == v1alpha1.StateStopped
			var err error
			if both[i], err = measureSize(ctx, o, spec, state); err != nil {
				return fmt.Errorf("%s ones: %w", state, err)
			}
		}
		small, large, n := both[0], both[1], float64(o.burst)
		part := fmt.Sprintf("%s: the manager with %d Conversations of 512 KiB that are %s", partSizes, o.burst, state)
		r.compare(part, "memory (RSS)", "MiB", large.after.RSS, small.after.RSS)
		r.compare(part, "memory at its peak", "MiB", large.after.Peak, small.after.Peak)
		r.compare(part, "CPU time for each", "ms", (large.after.CPU-large.before.CPU)/n, (small.after.CPU-small.before.CPU)/n)
		r.compare(part, "started again: memory (RSS)", "MiB", large.again.RSS, small.again.RSS)
		r.compare(part, "started again: memory at its peak", "MiB", large.again.Peak, small.again.Peak)
		r.compare(part, "started again: CPU time for each", "ms", large.again.CPU/n, small.again.CPU/n)
	}
	return nil
}

// sized is what the manager takes with no Conversations, with all of them, and when another process
// finds them.
type sized struct{ before, after, again process.Sample }

func measureSize(ctx context.Context, o options, spec v1alpha1.ConversationSpec, state v1alpha1.ConversationState) (
	s sized, err error) {
	b, ctx, end, err := startBed(ctx, o, plan{audit: auditPolicy})
	if err != nil {
		return s, err
	}
	defer end()
	s.before = b.empty[parley.Manager]
	if _, err := b.makeMany(ctx, b.conversationsOf(spec, state), "sized", o.burst,
		min(o.clients, fewClients)); err != nil {
		return s, err
	}
	if _, _, err := b.settle(ctx, time.Now()); err != nil {
		return s, err
	}
	if s.after, err = process.Look(b.supervisor.PID(parley.Manager)); err != nil {
		return s, err
	}
	b.supervisor.End(parley.Manager)
	if err := b.startManager(ctx); err != nil {
		return s, err
	}
	if _, _, err := b.settle(ctx, time.Now()); err != nil {
		return s, err
	}
	s.again, err = process.Look(b.supervisor.PID(parley.Manager))
	return s, err
}
