package testenv

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// StartControllerManager runs the named controllers of Kubernetes until the test ends.
func (e *Env) StartControllerManager(t *testing.T, controllers ...string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, e.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	binaries := cmp.Or(e.BinaryAssetsDirectory, os.Getenv("KUBEBUILDER_ASSETS"))
	supervisor, ctx := cluster.Supervise(context.Background(), dir)
	t.Cleanup(func() { supervisor.Stop(nil) })
	if err := supervisor.Start(ctx, cluster.Process{
		Name: "kube-controller-manager", Path: filepath.Join(binaries, "kube-controller-manager"), Grace: 5 * time.Second,
		Args: []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "--controllers=" +
			strings.Join(controllers, ",")},
	}); err != nil {
		t.Fatal(err)
	}
}
