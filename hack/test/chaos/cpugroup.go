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

// cpuGroup is the directory of a control group, which sets the share of the CPU time for its
// processes and their children. A scheduling policy is not enough: the commands of agents start new
// process sessions (setsid), and the kernel gives each process session a full share of the CPU.
type cpuGroup string

// newIdleGroup creates a group that gets only CPU time that no other process needs.
func newIdleGroup(pid int) (cpuGroup, error) {
	return newCPUGroup(pid, map[string]int{"cpu.idle": 1})
}

// newFirstGroup creates a group whose share of the CPU time is much larger than that of all other
// processes.
func newFirstGroup(pid int) (cpuGroup, error) {
	return newCPUGroup(pid, map[string]int{"cpu.shares": 1 << 18, "cpu.weight": 10_000})
}

// newCPUGroup creates a group for a process. The map settings contains the value for each file of
// the group. The two versions of control groups have different files. newCPUGroup returns "" on a
// machine without control groups for the CPU.
func newCPUGroup(pid int, settings map[string]int) (cpuGroup, error) {
	for _, root := range []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("parley-chaos-%d", pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		group := cpuGroup(dir)
		err := fs.ErrNotExist
		for name, value := range settings {
			if e := group.set(name, value); !errors.Is(e, fs.ErrNotExist) {
				err = e
			}
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			group.remove()
			continue
		}
		if err == nil {
			err = group.set("cgroup.procs", pid)
		}
		if err != nil {
			group.remove()
			return "", fmt.Errorf("set the share of the CPU time: %w", err)
		}
		return group, nil
	}
	return "", nil
}

// set writes a number to an existing file of the group.
func (g cpuGroup) set(name string, value int) error {
	file, err := os.OpenFile(filepath.Join(string(g), name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(value))
	return errors.Join(err, file.Close())
}

// leave moves this process out of the group, and removes the group.
func (g cpuGroup) leave() {
	if g != "" {
		_ = cpuGroup(filepath.Dir(string(g))).set("cgroup.procs", os.Getpid())
		g.remove()
	}
}

// remove removes the group. The kernel refuses the removal until all processes of the group have
// ended.
func (g cpuGroup) remove() {
	for deadline := time.Now().Add(time.Second); g != "" && time.Now().Before(deadline); {
		if err := os.Remove(string(g)); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
