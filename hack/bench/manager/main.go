// Command manager measures what Conversations cost the manager: memory and CPU time, of small and of large ones, of those
// that wait and of those that run. The API server and the manager's process are real; the kubelet only says that pods run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/bench/process"
)

// As much as the schema takes: with two texts and 16 images this is half a MiB.
const (
	largeText  = 131072
	largeImage = 16384
	images     = 16
)

func main() {
	program := flag.String("manager", "bin/manager", "the manager's program")
	count := flag.Int("conversations", 1000, "how many Conversations")
	only := flag.String("only", "", "suspended or running: only those")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	// Whoever interrupts it leaves no API server behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *program, *count, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, count int, only string) error {
	fmt.Printf("The manager's process with %d Conversations: resident memory in MiB, CPU time in ms for each of them\n", count)
	fmt.Printf("%-10s %9s %8s %8s %8s %8s %8s   %s\n", "they are", "of", "before", "after", "peak", "KiB each", "CPU each", "and when it is started again: memory, peak, CPU each")
	for _, state := range []string{"suspended", "running"} {
		if only != "" && only != state {
			continue
		}
		var both [2]figures
		for i, c := range []struct {
			name string
			spec v1alpha1.ConversationSpec
		}{{"100 B", smallSpec()}, {"512 KiB", largeSpec()}} {
			c.spec.Suspend = state == "suspended"
			f, err := measure(ctx, program, count, c.spec)
			if err != nil {
				return fmt.Errorf("%s ones of %s: %w", state, c.name, err)
			}
			n := float64(count)
			fmt.Printf("%-10s %9s %8.0f %8.0f %8.0f %8.1f %8.2f   %.0f, %.0f, %.2f\n", state, c.name, f.before.RSS, f.after.RSS, f.after.Peak,
				(f.after.RSS-f.before.RSS)*1024/n, (f.after.CPU-f.before.CPU)/n, f.again.RSS, f.again.Peak, f.again.CPU/n)
			both[i] = f
		}
		fmt.Printf("%-10s large against small: memory x%.2f, CPU x%.2f\n", state,
			both[1].after.RSS/both[0].after.RSS, (both[1].after.CPU-both[1].before.CPU)/(both[0].after.CPU-both[0].before.CPU))
	}
	return nil
}

func smallSpec() v1alpha1.ConversationSpec {
	return v1alpha1.ConversationSpec{UserSettingsName: user, InitialUserMsg: ptr.To(strings.Repeat("x", 100))}
}

func largeSpec() v1alpha1.ConversationSpec {
	spec := smallSpec()
	spec.InitialUserMsg, spec.ConversationInstructions = ptr.To(strings.Repeat("x", largeText)), ptr.To(strings.Repeat("y", largeText))
	for i := range images {
		prefix := fmt.Sprintf("data:image/png;base64,%04d", i)
		spec.ImageURLs = append(spec.ImageURLs, prefix+strings.Repeat("A", (largeImage-len(prefix))/4*4))
	}
	return spec
}

// figures of one measurement: with no Conversations, with all of them, and of another process that finds them.
type figures struct{ before, after, again process.Sample }

func measure(ctx context.Context, program string, count int, spec v1alpha1.ConversationSpec) (f figures, err error) {
	b, err := start()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	if err := b.startManager(ctx, program); err != nil {
		return f, err
	}
	if f.before, err = b.settled(ctx); err != nil {
		return f, err
	}
	if err := b.fill(ctx, count, spec); err != nil {
		return f, err
	}
	if f.after, err = b.settled(ctx); err != nil {
		return f, err
	}
	if err := b.stopManager(); err != nil {
		return f, err
	}
	if err := b.startManager(ctx, program); err != nil {
		return f, err
	}
	f.again, err = b.settled(ctx)
	return f, err
}
