package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// quiet is how long a manager that has nothing more to do uses no CPU time worth mentioning.
	quiet = 2 * time.Second
	// murmur is what probes and leases cost in that time, in ms.
	murmur = 20
	// ticks of the clock in which the kernel counts CPU time are this many ms long.
	tick = 10
)

// sample is what a process has taken: memory in MiB, CPU time in ms.
type sample struct{ rss, peak, cpu float64 }

// settled waits until the manager has nothing more to do, and says what it has taken.
func (b *bench) settled(ctx context.Context) (taken sample, err error) {
	var last sample
	var since time.Time
	err = poll(ctx, func(context.Context) error {
		if taken, err = look(b.manager.Process.Pid); err != nil {
			return err
		}
		if taken.cpu-last.cpu > murmur || since.IsZero() {
			last, since = taken, time.Now()
		}
		if time.Since(since) < quiet {
			return errors.New("the manager is at work")
		}
		return nil
	})
	return taken, err
}

// look at what the kernel says of a process.
func look(pid int) (s sample, err error) {
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
		s.cpu += ticks * tick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		for name, into := range map[string]*float64{"VmRSS:": &s.rss, "VmHWM:": &s.peak} {
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
