package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/manifests"
)

// A token outlives many refreshes, so that a machine that slept, or an API
// server that was slow, does not lock a process out.
const (
	tokenLife    = 24 * time.Hour
	tokenRefresh = 10 * time.Minute
)

// processNames are the containers of the Deployments that run here.
var processNames = []string{"manager", "facade"}

func (l *local) tokenKubeconfig(name string) string {
	return filepath.Join(l.stateDir, "identity", name+".kubeconfig")
}

// issueTokens gives each process the identity that its pod would have.
func (l *local) issueTokens(ctx context.Context) error {
	for _, name := range processNames {
		w, found := l.workloads[name]
		if !found || w.ServiceAccount == "" {
			return fmt.Errorf("%s has no Deployment with a container %s and a service account", l.manifests, name)
		}
		if err := l.plane.WriteTokenKubeconfig(l.tokenKubeconfig(name), name+".token", w.ServiceAccount); err != nil {
			return err
		}
		err := manifests.Persist(ctx, func(ctx context.Context) error { return l.issueToken(ctx, name) })
		if err != nil {
			return fmt.Errorf("token for ServiceAccount %s/%s: %w", w.Namespace, w.ServiceAccount, err)
		}
	}
	return nil
}

func (l *local) issueToken(ctx context.Context, name string) error {
	token, err := l.workloads[name].IssueToken(ctx, l.client, tokenLife)
	if err != nil {
		return err
	}
	return cluster.WritePrivate(filepath.Join(l.stateDir, "identity", name+".token"), []byte(token))
}

func (l *local) refreshTokens(ctx context.Context) {
	tick := time.NewTicker(tokenRefresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range processNames {
			if err := l.issueToken(ctx, name); err != nil && !errors.Is(err, context.Canceled) {
				l.say("%s keeps its old token for now: %v", name, err)
			}
		}
	}
}

// arguments of a process: those of its Deployment, then ours, which win because
// the last of several equal flags counts.
func (l *local) arguments(name string, ours ...string) []string {
	return slices.Concat(l.workloads[name].Args, ours)
}
