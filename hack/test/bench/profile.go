package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const profilePort = "manager-profile"

// profileSource is added to the manager, because a shipped manager serves no profiles.
const profileSource = `package main

import (
	"net/http"
	_ "net/http/pprof"
)

func init() { go func() { panic(http.ListenAndServe(%q, nil)) }() }
`

// buildProfiled builds a manager that serves profiles. The new BinDir contains this manager and a
// link to the facade, because both programs are started from BinDir.
func (b *bed) buildProfiled(ctx context.Context, bin string) error {
	facade, err := filepath.Abs(filepath.Join(bin, parley.Facade))
	if err != nil {
		return err
	}
	b.parley.BinDir = filepath.Join(b.dir, "profiled")
	source, overlay := filepath.Join(b.dir, "profile.go"), filepath.Join(b.dir, "overlay.json")
	replaced := fmt.Sprintf(`{"Replace":{%q:%q}}`, testenv.Path("cmd", parley.Manager, "zz_profile.go"), source)
	if err := errors.Join(
		os.Mkdir(b.parley.BinDir, 0o700), os.Symlink(facade, filepath.Join(b.parley.BinDir, parley.Facade)),
		os.WriteFile(source, fmt.Appendf(nil, profileSource, b.plane.Ports.Address(profilePort)), 0o600),
		os.WriteFile(overlay, []byte(replaced), 0o600),
	); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-overlay="+overlay, "-o", b.parley.BinDir, "./cmd/manager")
	build.Dir = testenv.Path()
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build a manager to profile: %w\n%s", err, output)
	}
	return nil
}

// profile writes profiles of the API server and the manager until the returned function is called.
// Each CPU profile takes 5 seconds; pprof can merge several CPU profiles.
func (b *bed) profile(ctx context.Context, dir, subject string) func() {
	var group sync.WaitGroup
	over := make(chan struct{})
	for name, config := range map[string]*rest.Config{
		apiServer: b.admin, parley.Manager: {Host: "http://" + b.plane.Ports.Address(profilePort)},
	} {
		keep := func(kind, which string) bool {
			client, err := kubernetes.NewForConfig(config)
			var text []byte
			if err == nil {
				text, err = client.CoreV1().RESTClient().Get().RequestURI("/debug/pprof/" + kind).DoRaw(ctx)
			}
			if err == nil {
				file := strings.ReplaceAll(fmt.Sprintf("%s-%s-%s.pprof", name, subject, which), " ", "-")
				err = os.WriteFile(filepath.Join(dir, file), text, 0o600)
			}
			if err != nil {
				say("no profile of %s: %v", name, err)
			}
			return err == nil
		}
		if b.supervisor.PID(name) == 0 {
			continue
		}
		group.Go(func() {
			keep("allocs", "allocs-before")
			for i := 0; keep("profile?seconds=5", fmt.Sprintf("%02d", i)); i++ {
				select {
				case <-over:
					keep("allocs", "allocs-after")
					return
				default:
				}
			}
		})
	}
	return func() {
		close(over)
		group.Wait()
	}
}
