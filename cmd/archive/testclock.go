//go:build testclock

package main

import (
	"os"
	"time"
)

// In builds with the tag testclock, the clock of the ledgers is ahead of the real time. The file at
// $PARLEY_TEST_CLOCK contains the difference, such as 24h. A test changes the file to change the
// month.
func init() {
	now = func() time.Time {
		text, err := os.ReadFile(os.Getenv("PARLEY_TEST_CLOCK"))
		if err != nil {
			panic(err)
		}
		ahead, err := time.ParseDuration(string(text))
		if err != nil {
			panic(err)
		}
		return time.Now().Add(ahead)
	}
}
