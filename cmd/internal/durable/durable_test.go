package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/internal/durable"
)

func TestClosingAFileReleasesItsLock(t *testing.T) {
	held := errors.New("held")
	path := filepath.Join(t.TempDir(), "file")
	open := func() *os.File {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	first, second := open(), open()
	if err := durable.Lock(first, 0, held); err != nil {
		t.Fatal(err)
	}
	if err := durable.Lock(second, 30*time.Millisecond, held); !errors.Is(err, held) {
		t.Errorf("the lock of an open file was taken: %v", err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond) // usually makes Lock wait; the test also passes without a wait
		_ = first.Close()
	}()
	if err := durable.Lock(second, time.Minute, held); err != nil {
		t.Errorf("the lock of a closed file: %v", err)
	}
}
