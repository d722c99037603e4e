package main

import "testing"

func TestTheNumberOfFuzzExecutionsIsReadFromTheLastProgressLine(t *testing.T) {
	output := "fuzz: elapsed: 0s, gathering baseline coverage: 0/2 completed\n" +
		"fuzz: elapsed: 3s, execs: 120 (40/sec), new interesting: 1 (total: 3)\n" +
		"fuzz: elapsed: 5s, execs: 250 (65/sec), new interesting: 2 (total: 4)\nPASS\n"
	if got := countExecutions(output); got != 250 {
		t.Errorf("counted %d", got)
	}
	if got := countExecutions("PASS\n"); got != 0 {
		t.Errorf("counted %d without a report", got)
	}
}
