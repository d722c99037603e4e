package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// backoff is the delay before the restart of a process that ended by itself.
const backoff = 300 * time.Millisecond

// supervised is a process that is restarted whenever it ends, as a kubelet restarts a container. It
// ends when the test kills it, or by itself, like a manager that lost its lease or an API server
// without etcd.
type supervised struct {
	cluster.Process
	log string

	mu      sync.Mutex
	cmd     *exec.Cmd
	began   int64 // log offset at which this process started
	killed  bool
	over    bool // no more restarts
	ends    int  // times that it ended by itself
	cancel  context.CancelFunc
	stopped chan struct{}
}

func supervise(p cluster.Process, logs string) (*supervised, error) {
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &supervised{Process: p, log: filepath.Join(logs, p.Name+".log"), cancel: cancel, stopped: make(chan struct{})}
	if err := k.start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	go k.loop(ctx)
	return k, nil
}

func (k *supervised) start() error {
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
	cmd.Env = append(os.Environ(), k.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// If this program is killed, the kernel kills the process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cluster.StartOnLastingThread(cmd); err != nil {
		return err
	}
	k.cmd, k.killed, k.began = cmd, false, info.Size()
	return nil
}

func (k *supervised) loop(ctx context.Context) {
	defer close(k.stopped)
	for {
		_ = k.cmd.Wait() // the log of the process contains the reason
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

// kill sends SIGKILL. If the process has just ended by itself, the signal has no effect, but the
// process is restarted anyway.
func (k *supervised) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.killed = true
	_ = k.cmd.Process.Kill()
}

func (k *supervised) restartWith(argument string) {
	k.mu.Lock()
	k.Args = append(slices.Clone(k.Args), argument)
	k.mu.Unlock()
	k.kill()
}

// stop kills the process and does not restart it. SIGKILL is sufficient, because the process has
// nothing to save.
func (k *supervised) stop() {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.cancel()
	k.kill()
	<-k.stopped
}

func (k *supervised) pid() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cmd.Process.Pid
}

func (k *supervised) endedByItself() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ends
}

// hasLogged reports whether the current process printed a text.
func (k *supervised) hasLogged(text string) bool {
	k.mu.Lock()
	began := k.began
	k.mu.Unlock()
	all, err := os.ReadFile(k.log)
	return err == nil && int64(len(all)) > began && bytes.Contains(all[began:], []byte(text))
}

func (k *supervised) await(ctx context.Context) error {
	if err := cluster.Retry(ctx, probeInterval, k.Ready); err != nil {
		return fmt.Errorf("%s is not ready: %w; see %s", k.Name, err, k.log)
	}
	return nil
}

const probeInterval = 100 * time.Millisecond
