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
	timeout  = 30 * time.Second
	interval = 20 * time.Millisecond
)

// Await calls check() until it returns nil. After a timeout, the test fails with the
// last error.
func Await(t testing.TB, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), interval, timeout, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("still after %s: %v", timeout, last)
	}
}

// Log collects output that several goroutines write, while a test reads it.
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
