package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	versionVariable = "LANDLOCK_VERSION"
	victimVariable  = "VICTIM"
)

// The test binary also acts as the confined process, and as the process to inspect.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(versionVariable) != "":
		if err := lookAround(os.Args[1]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case os.Getenv(victimVariable) != "":
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
	default:
		os.Exit(m.Run())
	}
}

func lookAround(victim string) error {
	runtime.LockOSThread()
	version, err := strconv.Atoi(os.Getenv(versionVariable))
	if err != nil {
		return err
	}
	environ := "/proc/" + victim + "/environ"
	if text, err := os.ReadFile(environ); err != nil || !strings.Contains(string(text), "canary") {
		return fmt.Errorf("before it was confined: %q, %w", text, err)
	}
	if err := restrict(version); err != nil {
		return err
	}
	if text, err := os.ReadFile(environ); err == nil {
		return fmt.Errorf("it read %q", text)
	}
	dir, err := os.MkdirTemp("", "confined-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	from, to := filepath.Join(dir, "a", "file"), filepath.Join(dir, "b", "file")
	for _, path := range []string{from, to} {
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(from, nil, 0o600); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// asNobody returns a function that runs this program as an unprivileged user, because root can
// inspect everything.
func asNobody(t *testing.T) func(args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "confine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "program")
	text, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = errors.Join(os.WriteFile(program, text, 0o755), os.Chmod(dir, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54322, Gid: 54322}}
		return cmd
	}
}

func TestAConfinedProcessCannotInspectOthers(t *testing.T) {
	run := asNobody(t)
	victim := run()
	victim.Env = []string{victimVariable + "=canary"}
	input, err := victim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = input.Close(), victim.Wait() }()
	if _, err := output.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if !Confinable() {
		t.Fatal("this kernel has no Landlock")
	}
	for _, version := range []int{landlockRefer, landlockScopes - 1, landlockScopes} {
		cmd := run(strconv.Itoa(victim.Process.Pid))
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", versionVariable, version))
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("version %d: %v\n%s", version, err, output)
		}
	}
}

func TestAMissingProgramIsReportedByName(t *testing.T) {
	cmd := Command(t.TempDir(), nil, "no-such-program")
	Confine(cmd)
	if err := cmd.Start(); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("got %v", err)
	}
}
