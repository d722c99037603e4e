package main

import (
	"fmt"
	"os"
	"strings"
)

// clockTick is the number of milliseconds per unit of CPU time in /proc.
const clockTick = 10

// sample is the resource usage of a process. CPU time is in ms. memory is the resident anonymous
// memory, such as heap and stacks, in MiB. resident is all resident memory in MiB.
type sample struct{ cpu, memory, resident float64 }

func sampleOf(pid int) (s sample, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, err
	}
	// The line is "pid (name) state …". The name may contain spaces and parentheses, so split only
	// the text after it. This text begins with field 3 of the line. The fields 14 and 15, utime and
	// stime, are therefore fields[11] and fields[12].
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	_, memory, _ := strings.Cut(string(status), "RssAnon:")
	_, resident, _ := strings.Cut(string(status), "VmRSS:")
	resident, _, _ = strings.Cut(resident, "kB")
	var user, system float64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12]+" "+resident+" "+memory, &user, &system, &s.resident,
		&s.memory); err != nil {
		return s, fmt.Errorf("read /proc/%d: %w", pid, err)
	}
	s.cpu, s.memory, s.resident = (user+system)*clockTick, s.memory/1024, s.resident/1024
	return s, nil
}
