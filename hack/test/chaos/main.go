// Command chaos kills parts of Parley and of Kubernetes without a warning, at random moments, while
// people use both faces, and then checks what was promised: what was accepted is there, no work was
// begun twice, nothing is left behind, no key is readable, every state is right.
//
// etcd, kube-apiserver, kube-controller-manager, the managers and the facades are real processes
// with the identities, rights, webhook and policies of config/. The node is a stub: it says of pods
// what a kubelet would, and runs nothing.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

type options struct {
	kills  int
	seed   uint64
	binDir string // of the manager and the facade
	assets string // of Kubernetes
	config string // the repository's config/
	// limit is how long all of it may take; each kill adds to it.
	limit time.Duration
	keep  bool
	// killing ends before all kills are done, if that is enough.
	killing context.Context
}

// perKill is how long a kill may take at most on average: processes that must start again share a
// small machine.
const perKill = 12 * time.Second

func main() {
	o := options{assets: "bin/k8s"}
	flag.IntVar(&o.kills, "kills", 30, "how often something is killed")
	flag.Uint64Var(&o.seed, "seed", 0, "what is killed when, and who asks for what; 0 chooses one")
	flag.StringVar(&o.binDir, "bin-dir", "bin", "directory of the programs manager and facade")
	flag.StringVar(&o.config, "config", "config", "directory of the manifests")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "how long it may take, beside 12 s for each kill")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs and data also where all is well")
	flag.Parse()
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		o.assets = assets
	}
	// A first signal ends the kills, and what was done so far is checked; a second one ends it all.
	var stop context.CancelFunc
	o.killing, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(o.killing, stop)
	if err := run(context.Background(), o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

var errViolated = errors.New("a promise was broken")

// run all of it, in a directory that is kept where something is wrong.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	dir, err := os.MkdirTemp("", "parley-chaos-")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.limit+time.Duration(o.kills)*perKill)
	defer cancel()
	_, _ = fmt.Fprintf(out, "chaos: %d kills, seed %d (-seed=%d repeats the choices)\n", o.kills, o.seed, o.seed)
	began := time.Now()
	r := newReport()
	defer func() {
		if err == nil && !o.keep {
			err = os.RemoveAll(dir)
			return
		}
		_, _ = fmt.Fprintln(out, "logs and data are in", dir)
	}()
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(out, "%4.0f s  "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
	}
	err = attempt(ctx, o, dir, r, say)
	r.print(out, time.Since(began))
	if err != nil {
		return err
	}
	if r.violated() {
		return errViolated
	}
	return nil
}

// attempt is the run without its report.
func attempt(ctx context.Context, o options, dir string, r *report, say func(format string, args ...any)) (err error) {
	i, err := install(ctx, o, dir, r)
	if i != nil {
		defer i.stop()
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	w, err := newWorld(ctx, i, o.seed, r)
	if err != nil {
		return fmt.Errorf("make the users: %w", err)
	}
	kubelet, err := startKubelet(ctx, i.admin)
	if err != nil {
		return fmt.Errorf("start the stub of a node: %w", err)
	}
	watching, stopScraping := context.WithCancel(ctx)
	defer stopScraping()
	go i.keepScraping(watching, r)

	say("everything runs")
	load := w.begin(ctx)
	err = i.killAtRandom(ctx, o, r, say)
	load.stop()
	if err != nil {
		return err
	}
	if err := i.awaitAll(ctx); err != nil {
		return fmt.Errorf("not everything came back: %w", err)
	}
	say("the last kill is over, and all is up again")
	last := w.check(ctx)
	say("it has settled; the last thing that was not right yet: %s", cmp.Or(last, "none"))
	r.note(checkNode, "%d pods ran", kubelet.Started())
	i.scrape(ctx, r)
	stopScraping()
	if err := i.checkHistory(ctx, r); err != nil {
		return fmt.Errorf("read what ever was in etcd: %w", err)
	}
	return i.checkLogs(r, filepath.Join(dir, "logs"))
}
