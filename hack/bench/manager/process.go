package main

import (
	"context"
	"errors"
	"time"

	"github.com/parley-dev/parley/hack/bench/process"
)

const (
	// quiet is how long a manager that has nothing more to do uses no CPU time worth mentioning.
	quiet = 2 * time.Second
	// murmur is what probes and leases cost in that time, in ms.
	murmur = 20
)

// settled waits until the manager has nothing more to do, and says what it has taken.
func (b *bench) settled(ctx context.Context) (taken process.Sample, err error) {
	var last process.Sample
	var since time.Time
	err = poll(ctx, func(context.Context) error {
		if taken, err = process.Look(b.manager.Process.Pid); err != nil {
			return err
		}
		if taken.CPU-last.CPU > murmur || since.IsZero() {
			last, since = taken, time.Now()
		}
		if time.Since(since) < quiet {
			return errors.New("the manager is at work")
		}
		return nil
	})
	return taken, err
}
