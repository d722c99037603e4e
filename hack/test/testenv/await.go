package testenv

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// patience is how long a test waits for something before it fails.
	patience = 30 * time.Second
	glance   = 20 * time.Millisecond
)

// Await waits until check says that all is well; else the test fails with what
// it said last.
func Await(t testing.TB, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), glance, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("still after %s: %v", patience, last)
	}
}

// Log is what processes or goroutines print while a test reads it.
type Log struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}
