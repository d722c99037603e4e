// Command bench measures the cost of Conversations. It compares them with minimal pods, with copies
// of session pods, and with minimal objects that need the same requests. It also measures the
// facade's overhead.
//
// The control plane, the manager and the facade are real processes. They use the roles, the webhook
// and the admission policy of config/. A fake kubelet immediately reports each pod as running. Only
// the part "session" runs real sessions, as processes.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

type options struct {
	parts       string
	bin, assets string
	sandbox     string
	json        string
	profile     string
	burst       int
	turns       int
	clients     int
	serial      int
	pool        int
	live        int
	rounds      int
	sessions    int
	round       time.Duration
}

// Parts of the benchmark, in the order of their execution.
const (
	partBurst   = "burst"
	partSerial  = "serial"
	partScale   = "scale"
	partFacade  = "facade"
	partSession = "session"
	partWarm    = "warm"
	partCold    = "cold"
)

// parts are the parts that run by default. peerParts are the parts that need agent-sandbox, which
// `make bench-warm` builds.
var (
	parts     = []string{partBurst, partSerial, partScale, partFacade, partSession}
	peerParts = []string{partWarm, partCold}
)

func main() {
	o := options{assets: cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "bin/k8s")}
	flag.StringVar(&o.parts, "run", strings.Join(parts, ","), "parts to measure, separated by commas")
	flag.StringVar(&o.bin, "bin", "bin", "directory of Parley's programs")
	flag.StringVar(&o.json, "json", "", "file for the figures, as JSON")
	flag.StringVar(&o.profile, "profile", "", "directory for profiles of the API server and the manager during the "+
		"burst: CPU time and allocations; builds a manager that can be profiled")
	flag.IntVar(&o.burst, "burst", 1000, "objects per burst")
	flag.IntVar(&o.turns, "turns", 3, "bursts per subject, each in a new cluster; with 4 bursts, each "+
		"subject has each position in the order once")
	flag.IntVar(&o.clients, "clients", 32, "concurrent clients in a burst")
	flag.StringVar(&o.sandbox, "agent-sandbox", "", "directory of agent-sandbox's controller and CRDs, for the parts "+
		strings.Join(peerParts, " and "))
	flag.IntVar(&o.pool, "pool", 300, "warm pods in a pool; as many sessions start from it")
	flag.IntVar(&o.serial, "serial", 100, "objects created one after the other")
	flag.IntVar(&o.live, "live", 10000, "Conversations that run at the same time")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of creates, alternately over HTTP and directly")
	flag.IntVar(&o.sessions, "sessions", 20, "real sessions, started one after the other")
	flag.DurationVar(&o.round, "round", 2*time.Second, "duration of one round")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	// A signal ends the context, so that no API server is left running.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	chosen := strings.Split(o.parts, ",")
	if o.turns < 1 || o.sessions < 1 {
		return fmt.Errorf("-turns %d -sessions %d: both must be at least 1", o.turns, o.sessions)
	}
	for _, part := range chosen {
		if all := slices.Concat(parts, peerParts); !slices.Contains(all, part) {
			return fmt.Errorf("-run %s: no such part; choose from %s", part, strings.Join(all, ", "))
		}
		if slices.Contains(peerParts, part) && o.sandbox == "" {
			return fmt.Errorf("-run %s needs -agent-sandbox", part)
		}
	}
	r := newReport()
	err := measureParts(ctx, o, r, chosen)
	r.print(os.Stdout) // even if a later part failed
	if err == nil && o.json != "" {
		err = r.write(o.json)
	}
	return err
}

func measureParts(ctx context.Context, o options, r *report, chosen []string) error {
	if slices.Contains(chosen, partBurst) {
		say("%s", partBurst)
		if err := measureBurst(ctx, o, r); err != nil {
			return fmt.Errorf("%s: %w", partBurst, err)
		}
	}
	if err := measureInCluster(ctx, o, r, chosen); err != nil {
		return err
	}
	if slices.Contains(chosen, partFacade) {
		say("%s", partFacade)
		if err := measureFacade(o, r); err != nil {
			return fmt.Errorf("%s: %w", partFacade, err)
		}
	}
	if slices.Contains(chosen, partSession) {
		say("%s", partSession)
		if err := measureSessions(ctx, o, r); err != nil {
			return fmt.Errorf("%s: %w", partSession, err)
		}
	}
	return measureBesidePeer(ctx, o, r, chosen)
}

func measureInCluster(ctx context.Context, o options, r *report, chosen []string) error {
	var b *bed
	for _, part := range []struct {
		name    string
		measure func(context.Context, *bed, options, *report) error
	}{{partSerial, measureSerial}, {partScale, measureScale}} {
		if !slices.Contains(chosen, part.name) {
			continue
		}
		if b == nil {
			var end func()
			var err error
			if b, ctx, end, err = startBed(ctx, o, plan{audit: auditPolicy}); err != nil {
				return err
			}
			defer end()
		}
		say("%s", part.name)
		if err := part.measure(ctx, b, o, r); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx) // report the dead process
			}
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

var began = time.Now()

// say prints progress to stderr. The table goes to stdout.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}
