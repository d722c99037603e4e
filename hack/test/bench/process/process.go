// Package process says what the kernel counts of a process.
package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// tick of the clock in which the kernel counts CPU time, in ms.
const tick = 10

// Sample is what a process has taken: memory in MiB, CPU time in ms.
type Sample struct {
	// RSS is all resident memory, Anon what of it belongs to no file, as heap and stacks do; Peak
	// is the largest RSS so far.
	RSS, Anon, Peak float64
	CPU             float64
}

// Look at what the kernel says of a process.
func Look(pid int) (s Sample, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	// "pid (name) state …", and the name may hold anything. utime and stime are the 14th and 15th.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseFloat(string(field), 64)
		if err != nil {
			return s, err
		}
		s.CPU += ticks * tick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		for name, into := range map[string]*float64{"VmRSS:": &s.RSS, "RssAnon:": &s.Anon, "VmHWM:": &s.Peak} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				if err != nil {
					return s, err
				}
				*into = kib / 1024
			}
		}
	}
	return s, nil
}
