package facadeenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// Facade is a process: a facade or an archive.
type Facade struct {
	URL, MetricsURL string
	Log             *testenv.Log
	// Done is closed when the process has ended.
	Done    chan struct{}
	command *exec.Cmd
}

// Build builds the facade. If the tests use the race detector, the facade uses it too, and exits
// with an error after a race.
func Build(file string) error {
	args, cgo := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file}, "CGO_ENABLED=0"
	if testenv.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	build := exec.Command("go", append(args, "./cmd/facade")...)
	build.Dir = testenv.Path()
	build.Env = append(os.Environ(), cgo)
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the facade: %w\n%s", err, output)
	}
	return nil
}

// StartFacade starts a facade at a free address and waits until it is ready.
func (e *Env) StartFacade(program string, args ...string) (*Facade, error) {
	return e.StartFacadeAt(FreeAddress(), program, args...)
}

// StartFacadeAt starts a facade at a given address, for example at the address of a killed facade.
func (e *Env) StartFacadeAt(address, program string, args ...string) (*Facade, error) {
	return e.start(address, program, append([]string{"--bind-address=" + address, "--shutdown-delay=0s"}, args...)...)
}

// StartArchive starts an archive that stores its data in a directory. The result's URL is the URL
// of the health check, not of the archive.
func (e *Env) StartArchive(address, program, dir string, args ...string) (*Facade, error) {
	health := FreeAddress()
	return e.start(health, program, append([]string{"--health-probe-bind-address=" + health, "--bind-address=" + address,
		"--store=file://" + dir}, args...)...)
}

// start starts a program, and waits until it serves the path /ready at the address.
func (e *Env) start(address, program string, args ...string) (*Facade, error) {
	metrics := FreeAddress()
	f := &Facade{URL: "http://" + address, MetricsURL: "http://" + metrics, Log: &testenv.Log{}, Done: make(chan struct{})}
	f.command = exec.Command(program, append([]string{
		"--kubeconfig=" + e.Kubeconfig, "--metrics-bind-address=" + metrics, "--signing-key-dir=" + e.SigningKeyDir,
	}, args...)...)
	f.command.Stdout, f.command.Stderr = f.Log, f.Log
	if err := f.command.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	go func() {
		_ = f.command.Wait()
		close(f.Done)
		cancel()
	}()
	if err := cluster.Retry(ctx, 50*time.Millisecond, cluster.HTTPProbe(f.URL+"/ready", nil)); err != nil {
		f.Kill()
		return nil, fmt.Errorf("the process is not ready: %w\n%s", err, f.Log)
	}
	return f, nil
}

// PID returns the process ID.
func (f *Facade) PID() int { return f.command.Process.Pid }

// Signal sends a signal to the process.
func (f *Facade) Signal(signal os.Signal) { _ = f.command.Process.Signal(signal) }

// ExitCode returns the exit code of an ended process.
func (f *Facade) ExitCode() int { return f.command.ProcessState.ExitCode() }

// Stop stops the process with SIGTERM, as a kubelet does.
func (f *Facade) Stop() error {
	f.Signal(syscall.SIGTERM)
	select {
	case <-f.Done:
	case <-time.After(timeout):
		f.Kill()
		return errors.New("the process does not stop")
	}
	if code := f.ExitCode(); code != 0 {
		return fmt.Errorf("the process ended with code %d\n%s", code, f.Log)
	}
	return nil
}

// Kill ends the process with SIGKILL.
func (f *Facade) Kill() {
	_ = f.command.Process.Kill()
	<-f.Done
}

// FreeAddress returns an unused loopback address with a random host. The host is not 127.0.0.1,
// because an outgoing connection could take a port of 127.0.0.1 before the caller listens on it.
func FreeAddress() string {
	host := fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(128), rand.IntN(256), 1+rand.IntN(254))
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}
