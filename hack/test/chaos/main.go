// Command chaos kills processes of Parley and Kubernetes with SIGKILL, at random moments, while
// clients use the API server and the facades. Then it checks Parley's guarantees: accepted requests
// are not lost, no work starts twice, no object is orphaned, no key leaks, every state is right.
//
// etcd, kube-apiserver, kube-controller-manager, the managers, the facades and the archive are real
// processes with the identities, rights, webhook and policies of config/. The node is a stub: it
// reports the status of pods as a kubelet does, and runs nothing.
//
// With -spend, real sessions of one user call a stub of a model until they reach a spending limit.
// The ledger must never exceed the limit, and must agree with the model's own count.
//
// With -hostile, the program kills nothing. It measures the waiting times of users with real
// sessions, alternately without and with attacks of a hostile tenant. The tenant has the
// ClusterRole "edit" in one namespace.
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
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

type options struct {
	kills  int
	seed   uint64
	binDir string // directory of Parley's programs
	assets string // directory of the Kubernetes programs
	config string // the repository's config/
	// limit is the time limit of the whole run. Each kill adds perKill to it.
	limit time.Duration
	keep  bool
	// If hostile is not zero, the run kills nothing. It measures the users for this duration
	// without a hostile tenant, and for the same duration with a hostile tenant.
	hostile time.Duration
	// spenders is the number of sessions that spend money while archives, facades and sessions are
	// killed. Zero means a run without spending.
	spenders int
	// attacks is a regular expression for the names of the tenant's attacks.
	attacks string
	// pool is the number of warm pods in each namespace of users; zero means no warm pods.
	pool int
	// killing is a context. When it ends, no more processes are killed.
	killing context.Context
}

// perKill is the time that each kill adds to the limit of the run. Restarts are slow, because all
// processes share a small machine.
const perKill = 12 * time.Second

func main() {
	o := options{assets: cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "bin/k8s")}
	flag.IntVar(&o.kills, "kills", 30, "number of kills")
	flag.IntVar(&o.pool, "pool", 10, "number of warm pods in each namespace of users")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of all random choices; 0 chooses one")
	flag.StringVar(&o.binDir, "bin-dir", "bin", "directory of the programs manager and facade")
	flag.StringVar(&o.config, "config", "config", "directory of the manifests")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "time limit of the run, in addition to 12 s for each kill")
	flag.DurationVar(&o.hostile, "hostile", 0,
		"kill nothing; measure users for this time without a hostile tenant, and for this time with one")
	flag.StringVar(&o.attacks, "attacks", "", "regular expression of the attacks to run; all by default")
	flag.IntVar(&o.spenders, "spend", 0,
		"let this number of sessions spend money against a limit of 5 cents for each session")
	tenant := flag.String("tenant", "", "attack as a hostile tenant, with these options in JSON; used by -hostile")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs and data of a successful run, too")
	flag.Parse()
	if *tenant != "" {
		if err := runTenant(context.Background(), *tenant, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "tenant:", err)
			os.Exit(1)
		}
		return
	}
	// The first signal ends the kills, and the results are checked. The second signal ends the run.
	var stop context.CancelFunc
	o.killing, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(o.killing, stop)
	if err := run(context.Background(), o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

var errViolated = errors.New("a guarantee was violated")

// run runs the program in a new directory. It deletes the directory after a success, unless the
// flag -keep is set.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	if o.hostile > 0 {
		o.kills = 0
	}
	if o.hostile > 0 || o.spenders > 0 {
		o.pool = 0
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	dir, err := os.MkdirTemp(parentDir(o), "parley-chaos-")
	if err != nil {
		return err
	}
	measuring := time.Duration(len(phases))*o.hostile + partsPerPhase*(settleTime+restTime)
	ctx, cancel := context.WithTimeout(ctx, o.limit+time.Duration(o.kills)*perKill+measuring)
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
	switch {
	case o.hostile > 0:
		err = measureHostileTenant(ctx, o, dir, r, out, say)
		r.printChecks(out, checkOthers, checkUsage, checkRestart, checkClass, checkModel, checkKeys, checkProcesses)
	case o.spenders > 0:
		err = spendMoney(ctx, o, dir, r, out, say)
		r.printChecks(out, checkLimit, checkLedger, checkKeys, checkProcesses)
	default:
		err = attempt(ctx, o, dir, r, say)
		r.printCounts(out, time.Since(began))
		r.printChecks(out, slices.DeleteFunc(slices.Clone(checks), func(check string) bool {
			return o.pool == 0 && slices.Contains(poolChecks, check)
		})...)
	}
	if err != nil {
		return err
	}
	if r.violated() {
		return errViolated
	}
	return nil
}

// attempt performs a run with kills.
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
		return fmt.Errorf("create the users: %w", err)
	}
	kubelet, err := startKubelet(ctx, i.admin, o, w.bound)
	if err != nil {
		return fmt.Errorf("start the stub node: %w", err)
	}
	if o.pool > 0 {
		if err := i.createPools(ctx, o.pool); err != nil {
			return fmt.Errorf("create the pools: %w", err)
		}
	}
	watching, stopScraping := context.WithCancel(ctx)
	defer stopScraping()
	go wait.UntilWithContext(watching, func(ctx context.Context) { i.scrape(ctx, r) }, scrapeInterval)

	say("all processes run")
	load := w.begin(ctx)
	disturbing, stopDisturbing := context.WithCancel(ctx)
	defer stopDisturbing()
	go w.bound.restartContainers(disturbing, i, kubelet, w.random(1<<32+1))
	err = i.killAtRandom(ctx, o, r, watchClaims(disturbing, i.admin), say)
	stopDisturbing()
	load.stop()
	if err != nil {
		return err
	}
	if err := i.awaitAll(ctx); err != nil {
		return fmt.Errorf("a process did not become ready again: %w", err)
	}
	say("the kills are over, and all processes are ready again")
	extra, last := w.check(ctx)
	say("the state has settled; the last temporary problem: %s", cmp.Or(last, "none"))
	r.note(checkNode, "%d pods ran", kubelet.Started())
	i.scrape(ctx, r)
	stopScraping()
	past, err := i.checkHistory(ctx, r)
	if err != nil {
		return fmt.Errorf("read the history from etcd: %w", err)
	}
	past.checkExtraAttempts(extra)
	if o.pool > 0 {
		w.bound.check(past.owners)
	}
	return i.checkLogs(r, filepath.Join(dir, "logs"))
}

// parentDir returns the directory in which the run creates its own directory. A run with a hostile
// tenant writes its files to memory. On a disk, its processes would slow each other down, but in a
// cluster they write to different disks.
func parentDir(o options) string {
	const memory = "/dev/shm"
	if _, err := os.Stat(memory); err == nil && o.hostile > 0 {
		return memory
	}
	return os.TempDir()
}
