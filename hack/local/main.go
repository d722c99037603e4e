// Command local runs Parley on this machine. It starts a Kubernetes control plane on loopback and
// installs config/. The manager, the archive and the facade run as processes with the identities of
// their ServiceAccounts. Sessions also run as processes, on a simulated node.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/local/parley"
)

type options struct {
	stateDir  string // directory of all state that survives a restart
	binDir    string // directory of Parley's programs
	assets    string // directory of the Kubernetes binaries
	manifests string // kustomization to install
	port      int    // the facade's port
}

var errInterrupted = errors.New("interrupted")

func main() {
	o := options{assets: cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "bin/k8s")}
	flag.StringVar(&o.stateDir, "state-dir", ".local", "directory of data, certificates, keys and logs")
	flag.StringVar(&o.binDir, "bin-dir", "bin", "directory of the programs manager, facade and runtime")
	flag.StringVar(&o.manifests, "manifests", "config/default", "kustomization to install")
	flag.Parse()

	ctx, force := notifyContext()
	err := o.fromEnvironment()
	if err == nil {
		err = run(ctx, force, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "parley:", err)
		os.Exit(1)
	}
}

func (o *options) fromEnvironment() error {
	port := cmp.Or(os.Getenv("PORT"), "3000")
	var err error
	if o.port, err = strconv.Atoi(port); err != nil || o.port < 1 || o.port > 65535 {
		return fmt.Errorf("PORT=%s is not a port number", port)
	}
	return nil
}

// notifyContext returns a context that ends at the first signal, and a channel that is closed at a
// later signal. Signals within one second after the first signal are ignored: when make's process
// group gets a SIGTERM, make immediately sends this program another SIGTERM.
func notifyContext() (context.Context, <-chan struct{}) {
	const echo = time.Second
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, stop := context.WithCancelCause(context.Background())
	force := make(chan struct{})
	go func() {
		<-signals
		first := time.Now()
		stop(errInterrupted)
		for range signals {
			if time.Since(first) > echo {
				close(force)
				return
			}
		}
	}()
	return ctx, force
}

// local is the state of one run. The comment after a field names the function that sets the field.
type local struct {
	options
	out     io.Writer
	started time.Time
	force   <-chan struct{}

	supervisor *cluster.Supervisor
	plane      *cluster.ControlPlane // prepare
	parley     *parley.Installation  // run
	config     *rest.Config          // connect
	client     client.WithWatch      // connect
	sessionKey string                // createSettings
	node       *node.Node            // startNode
	endNode    context.CancelFunc    // startNode
}

type step struct {
	name    string
	timeout time.Duration
	do      func(context.Context) error
}

// run starts everything, waits for a signal or the exit of a process, and stops everything.
func run(ctx context.Context, force <-chan struct{}, o options, out io.Writer) error {
	// The path must be absolute, because it is part of URLs.
	state, err := filepath.Abs(o.stateDir)
	if err != nil {
		return err
	}
	unlock, err := cluster.Lock(o.stateDir)
	if err != nil {
		return err
	}
	defer unlock()

	if err := cluster.PortFree(o.port); err != nil {
		return fmt.Errorf("the facade cannot use port %d: %w; choose another, for example: make run PORT=%d", o.port, err,
			o.port+1)
	}

	l := &local{options: o, out: out, started: time.Now(), force: force}
	l.parley = &parley.Installation{StateDir: state, BinDir: o.binDir,
		FacadeAddress: cluster.Ports{parley.Facade: o.port}.Address(parley.Facade), Volumes: true}
	l.supervisor, ctx = cluster.Supervise(ctx, filepath.Join(o.stateDir, "log"))
	err = l.start(ctx)
	if err == nil {
		l.printBanner(ctx)
		l.serve(ctx)
	}
	// The context ends if a process exits or a signal arrives, and the current step of start then
	// fails. Report the exit or the signal, not the step's error.
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	l.say("stopping")
	l.stop()
	if errors.Is(err, errInterrupted) {
		l.say("stopped; the data stays in %s", o.stateDir)
		return nil
	}
	return err
}

func (l *local) start(ctx context.Context) error {
	steps := []step{
		{"certificates and ports", 30 * time.Second, l.prepare},
		{"control plane", 4 * time.Minute, func(ctx context.Context) error { return l.plane.Start(ctx, l.supervisor) }},
		{"admin's kubeconfig", 30 * time.Second, l.connect},
		{"manifests", time.Minute, l.install},
		{"identities", 30 * time.Second, l.parley.IssueTokens},
		{"manager", time.Minute, l.startManager},
		{"archive", time.Minute, l.startArchive},
		{"facade", time.Minute, l.startFacade},
		{"settings", time.Minute, l.createSettings},
		{"node", time.Minute, func(context.Context) error { return l.startNode(ctx) }},
	}
	for _, s := range steps {
		stepCtx, cancel := context.WithTimeout(ctx, s.timeout)
		err := s.do(stepCtx)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		l.say("%s", s.name)
	}
	return nil
}

// stop stops the sessions before the archive and the API server, which the sessions use.
func (l *local) stop() {
	if l.node != nil {
		l.endNode()
		l.node.Wait()
	}
	l.supervisor.Stop(l.force)
}

// serve keeps the tokens and the session key file up to date until the context ends.
func (l *local) serve(ctx context.Context) {
	go l.parley.RefreshTokens(ctx, l.say)
	go wait.UntilWithContext(ctx, l.watchSettings, time.Second)
	<-ctx.Done()
}

func (l *local) prepare(context.Context) error {
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		if _, err := os.Stat(filepath.Join(l.assets, name)); err != nil {
			return fmt.Errorf("%s is missing in %s; run make k8s, or set KUBEBUILDER_ASSETS", name, l.assets)
		}
	}
	var err error
	l.plane, err = cluster.NewControlPlane(l.assets, l.stateDir, append([]string{nodePort}, parley.Ports...), l.port)
	if err != nil {
		return err
	}
	// Pods have loopback addresses, which the API server rejects in Endpoints. No client reads
	// Endpoints here.
	l.plane.ControllerManagerArgs = []string{
		"--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"}
	l.parley.Plane = l.plane
	return nil
}

func (l *local) connect(context.Context) (err error) {
	l.config, l.client, err = l.plane.Connect(l.kubeconfigFile(), parley.FieldManager)
	l.parley.Client = l.client
	return err
}

// install applies the manifests that a real cluster also gets.
func (l *local) install(ctx context.Context) error {
	if err := l.createStorageClass(ctx); err != nil {
		return err
	}
	return l.parley.Install(ctx, l.manifests, filepath.Join(filepath.Dir(l.manifests), "classes"))
}
