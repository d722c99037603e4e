package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

// rootVariable makes the test binary the first process of a container with this root directory.
const rootVariable = "CONTAINER_ROOT"

// superviseIn executes the supervisor with this root directory, as a pod's container does.
func superviseIn(root string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, loopback); err != nil {
		return fmt.Errorf("use the loopback address: %w", err)
	}
	if err := errors.Join(unix.Close(socket), unix.Mount("/proc", filepath.Join(root, "proc"), "",
		unix.MS_BIND|unix.MS_REC, "")); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir(session.WorkspaceDir)); err != nil {
		return err
	}
	program := session.BinDir + "/supervisor"
	return unix.Exec(program, []string{program}, slices.DeleteFunc(os.Environ(),
		func(v string) bool { return strings.HasPrefix(v, rootVariable) }))
}

func TestAnImageCannotChooseTheSessionDocument(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, dir := range []string{session.Dir, session.WorkspaceDir, session.BinDir, "/dev", "/proc", "/x/workspace"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"runtime", "supervisor"} {
		if err := os.Link(filepath.Join(filepath.Dir(path), name), filepath.Join(root, session.BinDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := &pod{dir: filepath.Join(root, session.Dir),
		doc: session.Document{IdleTimeout: metav1.Duration{Duration: time.Millisecond}}}
	p.writeDocument(t)
	ofImage := &pod{dir: filepath.Join(root, "x"), doc: session.Document{FirstMessage: "go",
		Agent: &session.Agent{Name: "x", Command: []string{"no-such-agent"}}}}
	ofImage.writeDocument(t)

	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{
		rootVariable + "=" + root, "PARLEY_SESSION_DIR=/x", "PARLEY_WORKSPACE=/x/workspace",
		"PARLEY_TERMINATION_LOG=/x/termination",
		"PARLEY_BIND_ADDRESS=127.0.0.1:9", "PARLEY_ASK_INTERVAL=1ns", "PARLEY_ASK_TIMEOUT=1ns",
		session.SecretVariable(session.KeyFile) + "=" + secretValues[session.KeyFile],
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	ids := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	// The container has a separate network, because the default port may be in use on this machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, UidMappings: ids,
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this machine does not allow new namespaces: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	if err := cmd.Wait(); err != nil || strings.Contains(output.String(), "asked to") {
		t.Errorf("it ended with %v, and printed\n%s", err, output.String())
	}
	message, err := os.ReadFile(filepath.Join(root, "/dev/termination-log"))
	if got, said := session.ParseTermination(string(message)); err != nil || !said || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it says %q (%v)", message, err)
	}
	if _, err := os.Stat(filepath.Join(root, session.WorkspaceDir, ".parley")); err != nil {
		t.Errorf("it worked elsewhere: %v", err)
	}
}

func TestParleyVariablesOfAnImageAreIgnored(t *testing.T) {
	taken := []string{supervise.Attempt, session.SecretVariable(session.LLMAPIKeyFile), "PATH", "NODE_ENV"}
	for _, name := range append(taken, "PARLEY_SESSION_DIR", "PARLEY_END_TIMEOUT", "PARLEY_SECRET", "PARLEY_OTHER") {
		t.Setenv(name, "x")
	}
	if err := supervise.IgnoreImage(); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PARLEY_") || slices.Contains(taken, name) {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	slices.Sort(taken)
	if !slices.Equal(left, taken) {
		t.Errorf("it has %v", left)
	}
}
