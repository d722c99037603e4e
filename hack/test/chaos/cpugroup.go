package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// idleGroup is the directory of a control group. Its processes and their children get only CPU time
// that no other process needs. The scheduling policy SCHED_IDLE is not enough: the commands of
// agents start new process sessions, and the kernel gives each of them a full share of the CPU.
type idleGroup string

// newIdleGroup creates a group for a process. It returns "" on a machine without control groups
// for the CPU.
func newIdleGroup(pid int) (idleGroup, error) {
	for _, root := range []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("parley-chaos-%d", pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		group := idleGroup(dir)
		err := group.set("cpu.idle", 1)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			group.remove()
			continue
		}
		if err == nil {
			err = group.set("cgroup.procs", pid)
		}
		if err != nil {
			group.remove()
			return "", fmt.Errorf("limit the CPU time of the tenant: %w", err)
		}
		return group, nil
	}
	return "", nil
}

// set writes a number to an existing file of the group.
func (g idleGroup) set(name string, value int) error {
	file, err := os.OpenFile(filepath.Join(string(g), name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(value))
	return errors.Join(err, file.Close())
}

// remove removes the group. The kernel refuses the removal until all processes of the group have
// ended.
func (g idleGroup) remove() {
	for deadline := time.Now().Add(time.Second); g != "" && time.Now().Before(deadline); {
		if err := os.Remove(string(g)); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
