package integration_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// managerProcess is a manager that tests can kill. The webhook runs in another process, so it is
// available even while the manager is dead.
type managerProcess struct {
	mu      sync.Mutex
	command *exec.Cmd
	log     testenv.Log
	// args are appended to the manager's arguments at its next start. If a flag occurs twice, its
	// last value counts.
	args []string
}

func adminKubeconfig() string { return filepath.Join(suite.dir, "admin.kubeconfig") }

func (m *managerProcess) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	health := facadeenv.FreeAddress()
	m.command = exec.Command(program("manager"), append([]string{
		"--kubeconfig=" + adminKubeconfig(), "--namespace=parley-system", "--runtime-image=example.com/parley:1",
		"--leader-elect=false",
		"--archive-url=https://" + suite.ArchiveAddress, "--archive-certificate", "--metrics-bind-address=0",
		"--health-probe-bind-address=" + health,
		"--webhook-bind-address=" + facadeenv.FreeAddress(), "--webhook-cert-dir=" + filepath.Join(suite.dir, "webhook"),
		"--webhook-cert-rotation=false"}, m.args...)...)
	m.command.Stdout, m.command.Stderr = &m.log, &m.log
	if err := m.command.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(testTimeout); ; <-time.After(50 * time.Millisecond) {
		answer, err := http.Get("http://" + health + "/healthz")
		if err == nil {
			_ = answer.Body.Close()
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("the manager does not run: %w\n%s", err, &m.log), m.command.Process.Kill())
		}
	}
}

func (m *managerProcess) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.command.Process.Kill()
	_ = m.command.Wait()
}

func startManager() (*managerProcess, error) {
	if err := os.WriteFile(adminKubeconfig(), suite.KubeConfig, 0o600); err != nil {
		return nil, err
	}
	m := &managerProcess{}
	return m, m.start()
}
