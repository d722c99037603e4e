package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// The test program runs as three processes. The process "outside" prepares the run and starts the
// namespaces. The process "init" is the first process in the namespaces. The process "inside" runs
// the tests.
const (
	stageOutside = "outside"
	stageInit    = "init"
	stageInside  = "inside"
)

type options struct {
	stage        string
	state        string // directory of this run
	cache        string // directory that runs share
	logs         string // directory of the last run's logs
	binDir       string // directory of Parley's programs
	assets       string // directory of the Kubernetes programs
	dist         string // directory of install.yaml and default-class.yaml
	chart        string // directory of the Helm chart
	skipIfUnable bool
	hold         bool
	samples      int // number of samples per measurement; 0 skips the checks that only measure
}

func TestMain(m *testing.M) {
	o := options{assets: cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "bin/k8s")}
	flag.StringVar(&o.stage, "stage", "", "outside starts a node; init and inside are for this program's own use")
	flag.StringVar(&o.state, "state", "", "for this program's own use")
	flag.StringVar(&o.cache, "cache-dir", "bin/e2e-cache", "cache directory of the Debian image")
	flag.StringVar(&o.logs, "log-dir", "bin/e2e-log", "directory of the logs, overwritten by each run")
	flag.StringVar(&o.binDir, "bin-dir", "bin", "directory of the programs manager, facade, runtime, pause, hungry and "+
		"toolserver, of helm and of containerd")
	flag.StringVar(&o.dist, "dist", "bin/e2e-dist", "directory of install.yaml and default-class.yaml, made by "+
		"build-installer with the image "+parleyImage)
	flag.StringVar(&o.chart, "chart", "config/chart", "directory of the Helm chart to install")
	flag.BoolVar(&o.skipIfUnable, "skip-if-unable", false, "where a node cannot run, print the reason and succeed")
	flag.IntVar(&o.samples, "samples", 0, "run the checks that only measure, with this many samples; 30 take half an hour")
	flag.BoolVar(&o.hold, "hold", false, "after the checks, keep the cluster until Ctrl-C")
	flag.Parse()
	if o.stage == "" {
		os.Exit(m.Run())
	}
	ctrl.SetLogger(logr.Discard()) // the clients' errors contain the same information
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := o.run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context, m *testing.M) error {
	for _, path := range []*string{&o.cache, &o.logs, &o.binDir, &o.assets, &o.dist, &o.chart} {
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	switch o.stage {
	case stageInit:
		return runInit()
	case stageInside:
		return runInside(ctx, *o, m)
	}
	if reason := inability(); reason != "" {
		if o.skipIfUnable {
			fmt.Println("e2e: SKIPPED, nothing was tested: " + reason)
			return nil
		}
		return errors.New("cannot run here: " + reason)
	}
	return runOutside(ctx, *o)
}

// runOutside downloads and builds everything that needs the network, runs the cluster in Linux
// namespaces, and restores the machine.
func runOutside(ctx context.Context, o options) (err error) {
	began := time.Now()
	unlock, err := cluster.Lock(o.cache)
	if err != nil {
		return err
	}
	defer unlock()
	if err := installPackages(ctx); err != nil {
		return err
	}
	host, err := rememberHost(o.cache)
	if err != nil {
		return err
	}
	o.state = host.State
	defer func() {
		err = errors.Join(err, host.restore())
		if left := host.leftBehind(); len(left) > 0 {
			err = errors.Join(err, errors.New("left on the machine: "+strings.Join(left, "; ")))
		} else {
			fmt.Printf("%6.1fs  the cluster is down; nothing is left on the machine\n", time.Since(began).Seconds())
		}
	}()
	if err := os.RemoveAll(o.logs); err != nil {
		return err
	}
	if err := buildImages(ctx, o); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	fmt.Printf("%6.1fs  images are built\n", time.Since(began).Seconds())
	return runInNamespaces(ctx, o)
}
