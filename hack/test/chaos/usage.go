package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/parley-dev/parley/hack/local/parley"
)

const (
	sampleInterval = time.Second
	// cpuWindow is the number of samples in a window. The peak of CPU usage is the highest average
	// over a window.
	cpuWindow = 5
	// The kernel counts CPU time in ticks.
	ticksPerSecond = 100
)

// usage contains samples of the memory and the CPU time of processes.
type usage struct {
	installation *installation

	mu    sync.Mutex
	phase string
	part  int                         // counts the calls of enter()
	of    map[[2]string][]usageSample // keyed by phase and process
}

// usageSample contains the memory of a process in bytes, and the CPU time in seconds since its
// start. The CPU time between two samples counts only if no phase began between them, so that both
// have the same value of part.
type usageSample struct {
	at          time.Time
	part        int
	memory, cpu float64
}

func newUsage(i *installation) *usage {
	return &usage{installation: i, of: map[[2]string][]usageSample{}}
}

func (u *usage) enter(phase string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.phase = phase
	u.part++
}

func (u *usage) watch(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		u.mu.Lock()
		defer u.mu.Unlock()
		add := func(name string, s usageSample, err error) {
			if err == nil && u.phase != "" {
				s.part = u.part
				u.of[[2]string{u.phase, name}] = append(u.of[[2]string{u.phase, name}], s)
			}
		}
		for _, k := range u.installation.processes() {
			s, err := sampleUsage(k.pid())
			add(k.Name, s, err)
		}
		s, err := sampleStolen()
		add(stolen, s, err)
	}, sampleInterval)
}

// stolen is the name for CPU time that the hypervisor gave to other virtual machines. If this time
// is high, slow responses to users may not be Parley's fault.
const stolen = "stolen"

func sampleStolen() (usageSample, error) {
	s := usageSample{at: time.Now()}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return s, err
	}
	// The file begins with "cpu user nice system idle iowait irq softirq steal …".
	var name string
	ticks := make([]float64, 8)
	_, err = fmt.Sscan(string(stat), &name, &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6],
		&ticks[7])
	s.cpu = ticks[7] / ticksPerSecond
	return s, err
}

// sampleUsage reads a sample from /proc: anonymous memory, such as heap and stacks, and CPU time.
func sampleUsage(pid int) (usageSample, error) {
	s := usageSample{at: time.Now()}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, err
	}
	// The file stat contains "pid (name) state …", and the name may contain ")". The slice fields
	// begins with field 3 of the file, the state. Fields 14 and 15 of the file are utime and stime.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	_, memory, _ := strings.Cut(string(status), "RssAnon:")
	var user, system, kib float64
	_, err = fmt.Sscan(fields[11]+" "+fields[12]+" "+memory, &user, &system, &kib)
	s.cpu, s.memory = (user+system)/ticksPerSecond, kib*1024
	return s, err
}

// peaks returns the highest memory usage, the highest CPU usage over a window, and the average CPU
// usage. CPU usage is in cores.
func peaks(samples []usageSample) (memory, cpu, average float64) {
	var used, seconds float64
	for i, s := range samples {
		memory = max(memory, s.memory)
		if before := samples[max(0, i-cpuWindow)]; i >= cpuWindow && before.part == s.part {
			cpu = max(cpu, (s.cpu-before.cpu)/s.at.Sub(before.at).Seconds())
		}
		if before := samples[max(0, i-1)]; before.part == s.part {
			used += max(0, s.cpu-before.cpu)
			seconds += s.at.Sub(before.at).Seconds()
		}
	}
	if seconds > 0 {
		average = used / seconds
	}
	return memory, cpu, average
}

// print prints the usage of each process, and reports the processes that restarted or exceeded a
// limit of the manifests.
func (u *usage) print(out io.Writer, r *report) {
	u.mu.Lock()
	defer u.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("\nprocess\tphase\tmemory, peak\tlimit\tCPU, average\tpeak of %s\tlimit\trestarts", cpuWindow*sampleInterval)
	for _, phase := range phases {
		_, cpu, average := peaks(u.of[[2]string{phase, stolen}])
		line("%s\t%s\t-\t-\t%.2f\t%.2f\t-\t-", stolen, phase, average, cpu)
	}
	for _, k := range u.installation.processes() {
		component, _, _ := strings.Cut(k.Name, "-")
		memoryLimit, cpuLimit := 0.0, 0.0
		if slices.Contains([]string{parley.Manager, parley.Facade, parley.Archive}, component) {
			limits := u.installation.parley.Limits(component)
			memoryLimit, cpuLimit = limits.Memory().AsApproximateFloat64(), limits.Cpu().AsApproximateFloat64()
		}
		for _, phase := range phases {
			memory, cpu, average := peaks(u.of[[2]string{phase, k.Name}])
			line("%s\t%s\t%.0f MiB\t%s\t%.2f\t%.2f\t%s\t%d", k.Name, phase, memory/(1<<20), orNone(memoryLimit/(1<<20)), average,
				cpu, orNone(cpuLimit), k.endedByItself())
			if memoryLimit > 0 && memory > memoryLimit {
				r.violation(checkUsage, "%s uses %.0f MiB of memory", k.Name, memory/(1<<20))
			}
			if cpuLimit > 0 && cpu > cpuLimit {
				r.violation(checkUsage, "%s uses %.2f cores", k.Name, cpu)
			}
		}
		if k.endedByItself() > 0 {
			r.violation(checkRestart, "%s ended %d times by itself", k.Name, k.endedByItself())
		}
	}
}

func orNone(limit float64) string {
	if limit == 0 {
		return "none"
	}
	return fmt.Sprint(limit)
}
