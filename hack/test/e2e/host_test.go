package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
)

var nodePackages = []string{
	"runc", "containernetworking-plugins", "iproute2", "nftables", "iptables", "conntrack", "debootstrap", "git",
	"dbus-daemon",
}

const cgroupRoot = "/sys/fs/cgroup"

// inability returns the reason why this machine cannot run a node, or an empty string.
func inability() string {
	if os.Getuid() != 0 {
		return "a node needs root"
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "no apt-get: the packages of a node come from Debian"
	}
	filesystems, _ := os.ReadFile("/proc/filesystems")
	if !strings.Contains(string(filesystems), "\toverlay\n") {
		return "the kernel has no overlayfs"
	}
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		return "the kernel has no br_netfilter, or it is not loaded: modprobe br_netfilter"
	}
	if len(cgroupHierarchies()) == 0 {
		return "no cgroups with a memory controller are mounted at " + cgroupRoot
	}
	if err := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "true").Run(); err != nil {
		return "cannot create namespaces: " + err.Error()
	}
	for _, dir := range kubepods() {
		if err := removeCgroups(dir); err != nil {
			return "another kubelet runs here: " + dir + " is in use"
		}
	}
	return ""
}

// cgroupHierarchies returns the mounted hierarchies in which a kubelet creates cgroups.
func cgroupHierarchies() []string {
	if controllers, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		if slices.Contains(strings.Fields(string(controllers)), "memory") {
			return []string{cgroupRoot}
		}
		return nil
	}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "memory", "tasks")); err != nil {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(cgroupRoot, "*"))
	return found
}

func kubepods() []string {
	var found []string
	for _, hierarchy := range cgroupHierarchies() {
		dir := filepath.Join(hierarchy, "kubepods")
		if _, err := os.Stat(dir); err == nil {
			found = append(found, dir)
		}
	}
	return found
}

// removeCgroups removes a tree of cgroups. It fails if the cgroups contain processes.
func removeCgroups(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

func installPackages(ctx context.Context) error {
	var missing []string
	for _, name := range nodePackages {
		status, _ := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${db:Status-Status}", name).Output()
		if string(status) != "installed" {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	fmt.Println("installing " + strings.Join(missing, " "))
	install := append([]string{"install", "--yes", "--no-install-recommends"}, missing...)
	for _, args := range [][]string{{"update"}, install} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, output)
		}
	}
	return nil
}

// changedByKubelet lists kernel settings that a kubelet changes for the whole machine, even from
// inside namespaces.
var changedByKubelet = []string{
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// host is the state of the machine before the run.
type host struct {
	file    string
	State   string            `json:"state"`
	Sysctls map[string]string `json:"sysctls"`
	mounts  []string
	links   []string
}

// rememberHost records the state of the machine in a file. If this run is killed, the next run
// restores the machine from this file.
func rememberHost(cache string) (*host, error) {
	h := &host{file: filepath.Join(cache, "host.json"), Sysctls: map[string]string{}}
	if saved, err := os.ReadFile(h.file); err == nil && json.Unmarshal(saved, h) == nil {
		fmt.Println("cleaning up after an earlier run that was killed")
		if err := h.restore(); err != nil {
			return nil, err
		}
	}
	var err error
	if h.State, err = os.MkdirTemp("", "parley-e2e-"); err != nil {
		return nil, err
	}
	for _, name := range changedByKubelet {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			h.Sysctls[name] = string(value)
		}
	}
	h.mounts, h.links = mounts(), links()
	content, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return h, cluster.WritePrivate(h.file, content)
}

// restore undoes the changes that the run made outside its Linux namespaces.
func (h *host) restore() error {
	errs := []error{os.RemoveAll(h.State)}
	for name, value := range h.Sysctls {
		errs = append(errs, os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644))
	}
	for _, dir := range kubepods() {
		errs = append(errs, retryBriefly(func() error { return removeCgroups(dir) }))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(h.file)
}

// leftBehind lists the leftovers of the run on the machine: mounts, network links, cgroups, kernel
// settings, processes and files.
func (h *host) leftBehind() []string {
	var left []string
	_ = retryBriefly(func() error { // the kernel removes namespaces with a delay
		left = nil
		for _, mount := range mounts() {
			if !slices.Contains(h.mounts, mount) {
				left = append(left, "mount "+mount)
			}
		}
		for _, link := range links() {
			if !slices.Contains(h.links, link) {
				left = append(left, "link "+link)
			}
		}
		left = append(left, processesOf(h.State)...)
		left = append(left, kubepods()...)
		for name, value := range h.Sysctls {
			if now, _ := os.ReadFile(filepath.Join("/proc/sys", name)); string(now) != value {
				left = append(left, "setting "+name)
			}
		}
		if _, err := os.Stat(h.State); err == nil {
			left = append(left, h.State)
		}
		if len(left) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	return left
}

func retryBriefly(call func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return cluster.Retry(ctx, 100*time.Millisecond, func(context.Context) error { return call() })
}

func mounts() []string {
	content, _ := os.ReadFile("/proc/self/mounts")
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

func links() []string {
	found, _ := filepath.Glob("/sys/class/net/*")
	return found
}

// processesOf returns the processes that have the directory in their arguments.
func processesOf(dir string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		if strings.Contains(string(content), dir) {
			found = append(found, "process "+strings.ReplaceAll(strings.TrimSuffix(string(content), "\x00"), "\x00", " "))
		}
	}
	return found
}
