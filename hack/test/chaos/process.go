package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// backoff between the end of a process by itself and its next start.
const backoff = 300 * time.Millisecond

// kept is a process that is started again whenever it ends, as a kubelet does, also by itself: a
// manager without a lease and an API server without etcd do end. All that it ever prints is in one
// file.
type kept struct {
	cluster.Process
	log string

	mu      sync.Mutex
	cmd     *exec.Cmd
	began   int64 // where in the log this process began
	killed  bool
	over    bool // it is not started any more
	ends    int  // by itself
	cancel  context.CancelFunc
	stopped chan struct{}
}

// keep starts a process and keeps it until it is stopped.
func keep(p cluster.Process, logs string) (*kept, error) {
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &kept{Process: p, log: filepath.Join(logs, p.Name+".log"), cancel: cancel, stopped: make(chan struct{})}
	if err := k.start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	go k.loop(ctx)
	return k, nil
}

func (k *kept) start() error {
	log, err := os.OpenFile(k.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	info, err := log.Stat()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return context.Canceled
	}
	cmd := exec.Command(k.Path, k.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	// Should we be killed, the kernel kills it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cluster.StartOnLastingThread(cmd); err != nil {
		return err
	}
	k.cmd, k.killed, k.began = cmd, false, info.Size()
	return nil
}

func (k *kept) loop(ctx context.Context) {
	defer close(k.stopped)
	for {
		_ = k.cmd.Wait() // how it ended is in its log
		k.mu.Lock()
		again := time.Duration(0)
		if !k.killed && ctx.Err() == nil {
			k.ends++
			again = backoff
		}
		k.mu.Unlock()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(again):
			}
			if k.start() == nil {
				break
			}
			again = backoff
		}
	}
}

// kill -9. One that has just ended is started again anyhow.
func (k *kept) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.killed = true
	_ = k.cmd.Process.Kill()
}

// stop it for good, without a warning either: nothing of it is needed any more.
func (k *kept) stop() {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.cancel()
	k.kill()
	<-k.stopped
}

func (k *kept) endedByItself() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ends
}

// said reports whether the process that runs now printed a text.
func (k *kept) said(text string) bool {
	k.mu.Lock()
	began := k.began
	k.mu.Unlock()
	all, err := os.ReadFile(k.log)
	return err == nil && int64(len(all)) > began && bytes.Contains(all[began:], []byte(text))
}

// await until it is ready.
func (k *kept) await(ctx context.Context) error {
	if err := cluster.Retry(ctx, probeInterval, k.Ready); err != nil {
		return fmt.Errorf("%s is not ready: %w; see %s", k.Name, err, k.log)
	}
	return nil
}

const probeInterval = 100 * time.Millisecond
