package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
)

const (
	archiveHealthPort  = "archive-health"
	archiveMetricsPort = "archive-metrics"
	s3Port             = "s3"
)

// startReplicasOnS3 starts replicas of the archive that share a bucket. Each replica has its own
// clock.
func (i *installation) startReplicasOnS3(ctx context.Context, archive cluster.Process) error {
	address := i.plane.Ports.Address(s3Port)
	server := cluster.Process{Name: s3Port, Path: filepath.Join(i.binDir, "s3"),
		Args: []string{"--bind-address=" + address}, Ready: cluster.HTTPProbe("http://"+address, nil)}
	var err error
	if i.s3, err = supervise(server, i.logs()); err != nil {
		return err
	}
	if err := i.s3.await(ctx); err != nil {
		return err
	}
	for n := range replicas {
		if err := i.setClock(n, 0); err != nil {
			return err
		}
	}
	return i.startReplicas(ctx, parley.Archive, &i.archives, func(n int, own string) cluster.Process {
		process, health := archive, i.plane.Ports.Address(portOf(archiveHealthPort, n))
		process.Name = portOf(parley.Archive, n)
		process.Path = filepath.Join(i.binDir, "archive-testclock")
		process.Ready = cluster.HTTPProbe("http://"+health+"/ready", nil)
		process.Env = append(process.Env[:len(process.Env):len(process.Env)], "AWS_ACCESS_KEY_ID=id",
			"AWS_SECRET_ACCESS_KEY=key", "PARLEY_TEST_CLOCK="+i.clockFile(n))
		process.Args = append(process.Args[:len(process.Args):len(process.Args)], "--bind-address="+own,
			"--health-probe-bind-address="+health,
			"--metrics-bind-address="+i.plane.Ports.Address(portOf(archiveMetricsPort, n)),
			"--store=s3://archive?region=us-east-1&use_path_style=true&endpoint=http://"+address)
		return process
	})
}

func (i *installation) clockFile(replica int) string {
	return filepath.Join(i.dir, fmt.Sprintf("clock-%d", replica))
}

// setClock sets the difference between the clock of an archive and the real time.
func (i *installation) setClock(replica int, ahead time.Duration) error {
	return cluster.WritePrivate(i.clockFile(replica), []byte(ahead.String()))
}
