package main

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// Guarantees that must hold while a hostile tenant attacks.
const (
	checkOthers  = "others are not slowed down"
	checkUsage   = "processes stay within their limits"
	checkRestart = "no process restarts"
	checkClass   = "the tenant stays within its classes"
	checkModel   = "no secret reaches the model"
)

const (
	// warmUp is the time in which all users start their first session, before the measurement.
	warmUp = 30 * time.Second
	// Each phase has partsPerPhase parts. The parts of the two phases alternate: if the machine
	// becomes slower or faster, this affects both phases alike. settleTime is the pause before a part
	// with attacks. restTime is the pause before a part without attacks: the tenant's sessions still
	// work for some seconds after the attacks.
	partsPerPhase = 4
	settleTime    = 5 * time.Second
	restTime      = 15 * time.Second
	// maxRatio limits the ratio between the p99 of a measured time with a hostile tenant and the
	// p99 of the same time without a hostile tenant.
	maxRatio = 2
)

// measureHostileTenant measures how long users wait for responses, running sessions and answers. It
// alternates between phases without attacks and phases with attacks of a hostile tenant. The
// tenant's objects and idle sessions stay between its attacks. Sessions are real processes, and
// their model is a stub. In a cluster, three groups would have processors and disks of their own:
// the tenant's clients and sessions, the users' clients and sessions, and the control plane with
// Parley. Here all files are in memory, and the CPU time is divided: the users' clients and
// sessions get the largest share, and the tenant's clients and sessions get only idle CPU time.
func measureHostileTenant(ctx context.Context, o options, dir string, r *report, out io.Writer,
	say func(format string, args ...any)) (err error) {
	i, err := install(ctx, o, dir, r)
	if i != nil {
		defer i.stop()
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	// This process contains the users' clients and starts the users' sessions, so put it into a CPU
	// group. The control plane and Parley already run, so they stay outside of the group.
	users, err := newFirstGroup(os.Getpid())
	if err != nil {
		return err
	}
	defer users.leave()
	stopNode, err := startNode(ctx, i.adminConf, node.Options{Name: "users", Say: say,
		Program: i.sessionProgram(), State: filepath.Join(dir, "node"), Logs: filepath.Join(dir, "sessions"),
		Runs: func(namespace string) bool { return namespace != tenantName }})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	defer stopNode()
	model := httptest.NewServer(scriptedmodel.New(scriptedmodel.Script{Default: "Done."}))
	defer model.Close()
	c, err := newCrowd(ctx, i, model.URL, o.seed)
	if err != nil {
		return fmt.Errorf("create the users: %w", err)
	}
	t, err := i.startTenant(ctx)
	if err != nil {
		return fmt.Errorf("start the tenant: %w", err)
	}
	defer t.kill()
	usage := newUsage(i)
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go usage.watch(watching)
	stopCrowd := c.begin(ctx)
	defer stopCrowd()
	say("%d users work", len(c.users))
	if err := cluster.Sleep(ctx, warmUp); err != nil {
		return err
	}
	for part := range partsPerPhase * len(phases) {
		phase, pause := phases[part%len(phases)], restTime
		if phase == besideTenant {
			if err := t.attack(); err != nil {
				return err
			}
			say("the tenant attacks")
			pause = settleTime
		}
		if err := cluster.Sleep(ctx, pause); err != nil {
			return err
		}
		c.enter(phase)
		usage.enter(phase)
		err := cluster.Sleep(ctx, o.hostile/partsPerPhase)
		if err == nil {
			err = c.leave(ctx, phase)
		}
		usage.enter("")
		if err == nil && phase == besideTenant {
			err = t.rest()
		}
		if err != nil {
			return err
		}
	}
	result, err := t.end()
	if err != nil {
		return fmt.Errorf("end the attacks: %w", err)
	}
	stopCrowd()
	stopWatching()
	i.scrape(ctx, r)
	c.print(out, r)
	usage.print(out, r)
	result.print(out, r)
	if err := i.checkClasses(ctx, r); err != nil {
		return err
	}
	return i.checkLogs(r, filepath.Join(dir, "logs"))
}

// startNode starts a node that runs sessions as processes.
func startNode(ctx context.Context, config *rest.Config, o node.Options) (stop func(), err error) {
	if o.Client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	force := make(chan struct{})
	running, err := node.Start(ctx, o, force)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() { cancel(); close(force); running.Wait() }, nil
}

func (i *installation) sessionProgram() string { return filepath.Join(i.binDir, "supervisor") }

// withMemoryLimit sets GOMEMLIMIT to 95% of the memory limit of the process's container, as the
// manifests do.
func (i *installation) withMemoryLimit(name string, process cluster.Process) cluster.Process {
	limits := i.parley.Limits(name)
	process.Env = append(process.Env, fmt.Sprintf("GOMEMLIMIT=%d000000", limits.Memory().Value()>>20))
	return process
}
