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

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	// slice is how long each profile is. pprof reads several files as one.
	slice = 5 * time.Second
)

// profilePorts are where programs that can be profiled are asked.
var profilePorts = map[string]string{parley.Manager: "manager-profile", parley.Facade: "facade-profile"}

// profileSource is added to a program that is profiled. Those that are shipped cannot be.
const profileSource = `package main

import (
	"net/http"
	_ "net/http/pprof"
)

func init() { go func() { panic(http.ListenAndServe(%q, nil)) }() }
`

// profiled is where profiles go, and where the programs are that can be profiled.
type profiled struct{ dir, bin string }

// prepareProfiles builds a manager and a facade that can be profiled.
func prepareProfiles(ctx context.Context, dir, scratch string, ports cluster.Ports) (*profiled, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	p := &profiled{dir: dir, bin: filepath.Join(scratch, "profiled")}
	for name, port := range profilePorts {
		source, overlay := filepath.Join(scratch, name+"-profile.go"), filepath.Join(scratch, name+"-overlay.json")
		content, err := json.Marshal(map[string]map[string]string{"Replace": {testenv.Path("cmd", name,
			"zz_profile.go"): source}})
		if err == nil {
			err = errors.Join(os.WriteFile(source, fmt.Appendf(nil, profileSource, ports.Address(port)), 0o600),
				os.WriteFile(overlay, content, 0o600))
		}
		if err != nil {
			return nil, err
		}
		build := exec.CommandContext(ctx, "go", "build", "-overlay="+overlay, "-o", filepath.Join(p.bin, name), "./cmd/"+name)
		build.Dir = testenv.Path()
		if output, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build a %s to profile: %w\n%s", name, err, output)
		}
	}
	return p, nil
}

// heaps keeps what the programs have in memory.
func (p *profiled) heaps(ctx context.Context, b *bed, when string) error {
	for name, port := range profilePorts {
		file := filepath.Join(p.dir, fmt.Sprintf("%s-heap-%s.pprof", name, strings.ReplaceAll(when, " ", "-")))
		if err := download(ctx, http.DefaultClient, "http://"+b.plane.Ports.Address(port)+"/debug/pprof/heap?gc=1",
			file); err != nil {
			return err
		}
	}
	return nil
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
		apiServer:      {b.admin.Host, &http.Client{Transport: transport}},
		parley.Manager: {"http://" + b.plane.Ports.Address(profilePorts[parley.Manager]), http.DefaultClient},
	} {
		if b.supervisor.PID(name) == 0 {
			continue
		}
		keep := func(kind, which string) bool {
			file := filepath.Join(p.dir, fmt.Sprintf("%s-%s-%s.pprof", name, strings.ReplaceAll(subject, " ", "-"), which))
			err := download(ctx, source.client, source.url+"/debug/pprof/"+kind, file)
			if err != nil {
				say("no profile of %s: %v", name, err)
			}
			return err == nil
		}
		group.Go(func() {
			if !keep("allocs", "allocs-before") {
				return
			}
			for i := 0; keep(fmt.Sprintf("profile?seconds=%.0f", slice.Seconds()), fmt.Sprintf("%02d", i)); i++ {
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
