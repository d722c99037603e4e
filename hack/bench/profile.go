package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/parley-dev/parley/hack/testenv"
)

const (
	profilePort = "profile"
	// slice is how long each profile is. pprof reads several files as one.
	slice = 5 * time.Second
	// profileEnvironment says where a manager that can be profiled is asked.
	profileEnvironment = "PARLEY_BENCH_PROFILE"
)

// profileSource is added to the manager that is profiled. The one that is shipped cannot be.
const profileSource = `package main

import (
	"net/http"
	_ "net/http/pprof"
	"os"
)

func init() { go func() { panic(http.ListenAndServe(os.Getenv("` + profileEnvironment + `"), nil)) }() }
`

// profiled is where profiles come from, and where they go.
type profiled struct{ dir, manager, address string }

// prepareProfiles builds a manager that can be profiled.
func prepareProfiles(ctx context.Context, dir, scratch, address string) (*profiled, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	p := &profiled{dir: dir, manager: filepath.Join(scratch, "manager-profiled"), address: address}
	source, overlay := filepath.Join(scratch, "profile.go"), filepath.Join(scratch, "overlay.json")
	content, err := json.Marshal(map[string]map[string]string{"Replace": {testenv.Path("cmd", "manager", "zz_profile.go"): source}})
	if err == nil {
		err = errors.Join(os.WriteFile(source, []byte(profileSource), 0o600), os.WriteFile(overlay, content, 0o600), os.Setenv(profileEnvironment, address))
	}
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-overlay="+overlay, "-o", p.manager, "./cmd/manager")
	build.Dir = testenv.Path()
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build a manager to profile: %w\n%s", err, output)
	}
	return p, nil
}

// begin to profile until the returned function is called, which waits for the last slice.
func (p *profiled) begin(ctx context.Context, b *bed, subject string) func() {
	transport, err := rest.TransportFor(b.admin)
	if err != nil {
		say("no profile of the API server: %v", err)
		return func() {}
	}
	var group sync.WaitGroup
	over := make(chan struct{})
	for name, source := range map[string]struct {
		url    string
		client *http.Client
	}{
		apiServer: {b.admin.Host, &http.Client{Transport: transport}},
		"manager": {"http://" + p.address, http.DefaultClient},
	} {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				file := filepath.Join(p.dir, fmt.Sprintf("%s-%s-%02d.pprof", name, strings.ReplaceAll(subject, " ", "-"), i))
				if err := download(ctx, source.client, fmt.Sprintf("%s/debug/pprof/profile?seconds=%.0f", source.url, slice.Seconds()), file); err != nil {
					say("no profile of %s: %v", name, err)
					return
				}
			}
		})
	}
	return func() {
		close(over)
		group.Wait()
	}
}

func download(ctx context.Context, client *http.Client, url, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, answer.Status)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}
