package parley

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/release/manifests"
)

// Tokens live much longer than the refresh interval. A process can therefore continue after the
// machine was suspended or while the API server is slow.
const (
	tokenLifetime = 24 * time.Hour
	tokenRefresh  = 10 * time.Minute
)

var processNames = []string{Manager, Archive, Facade}

// Kubeconfig returns the path of a process's kubeconfig.
func (i *Installation) Kubeconfig(name string) string {
	return filepath.Join(i.StateDir, "identity", name+".kubeconfig")
}

// IssueTokens gives each process a token of its ServiceAccount.
func (i *Installation) IssueTokens(ctx context.Context) error {
	for _, name := range processNames {
		w, found := i.workloads[name]
		if !found || w.ServiceAccount == "" {
			return fmt.Errorf("the installed manifests have no Deployment with a container %s and a service account", name)
		}
		if err := i.Identify(ctx, name, w); err != nil {
			return err
		}
	}
	return nil
}

// Identify gives a process a kubeconfig with a token of the workload's ServiceAccount.
func (i *Installation) Identify(ctx context.Context, name string, w manifests.Workload) error {
	if err := i.Plane.WriteTokenKubeconfig(i.Kubeconfig(name), name+".token", w.ServiceAccount); err != nil {
		return err
	}
	err := manifests.Persist(ctx, func(ctx context.Context) error { return i.issueToken(ctx, name, w) })
	if err != nil {
		return fmt.Errorf("token for ServiceAccount %s/%s: %w", w.Namespace, w.ServiceAccount, err)
	}
	return nil
}

func (i *Installation) issueToken(ctx context.Context, name string, w manifests.Workload) error {
	token, err := w.IssueToken(ctx, i.Client, tokenLifetime)
	if err != nil {
		return err
	}
	return cluster.WritePrivate(filepath.Join(i.StateDir, "identity", name+".token"), []byte(token))
}

// RefreshTokens replaces the tokens regularly until the context ends.
func (i *Installation) RefreshTokens(ctx context.Context, say func(format string, args ...any)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for _, name := range processNames {
			if err := i.issueToken(ctx, name, i.workloads[name]); err != nil && ctx.Err() == nil {
				say("%s keeps its old token, because a new one could not be issued: %v", name, err)
			}
		}
	}, tokenRefresh)
}

// arguments returns the arguments of a process's Deployment, followed by the additional arguments.
// If a flag occurs twice, its last value counts.
func (i *Installation) arguments(name string, additional ...string) []string {
	return slices.Concat(i.workloads[name].Args, additional)
}
