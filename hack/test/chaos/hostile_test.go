package main

import (
	"testing"
	"time"
)

func TestAPercentileIsOneOfTheMeasuredTimes(t *testing.T) {
	var times []time.Duration
	for n := 200; n > 0; n-- {
		times = append(times, time.Duration(n))
	}
	for p, want := range map[int]time.Duration{50: 100, 99: 198, 100: 200} {
		if got := percentile(times, p); got != want {
			t.Errorf("p%d is %d, want %d", p, got, want)
		}
	}
	if got := percentile(times[:1], 99); got != 200 {
		t.Errorf("p99 of one time is %d", got)
	}
}

func TestPeaksAndAverageOfUsageAreComputed(t *testing.T) {
	var samples []usageSample
	for n := range 21 {
		s := usageSample{at: time.Unix(int64(n), 0), memory: 100}
		if n > 10 { // the process uses one core from the tenth second on
			s.cpu, s.memory = float64(n-10), 200
		}
		samples = append(samples, s)
	}
	// This sample belongs to the next part of the measurement. CPU time between two parts does not
	// count.
	samples = append(samples, usageSample{at: time.Unix(100, 0), part: 1, cpu: 1000})
	if memory, cpu, average := peaks(samples); memory != 200 || cpu != 1 || average != 0.5 {
		t.Errorf("memory %v, CPU %v, on average %v", memory, cpu, average)
	}
}

func TestEveryAttackHasItsOwnName(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks {
		if seen[a.name] || a.atOnce < 1 || a.every <= 0 {
			t.Errorf("%s occurs twice, or is never called, or has no pause", a.name)
		}
		seen[a.name] = true
	}
}
