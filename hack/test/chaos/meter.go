package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// Every call has the same usage and thus the same cost.
const (
	callPrice         = "openai/small: {input: 0.3, output: 1.5, maxOutput: 1000}"
	callCost          = session.Dollar / 1_000_000 * (callInput*3 + callOutput*15) / 10
	callInput         = 4000
	callOutput        = 400
	longestCall       = 100 * time.Millisecond
	toolCallsPerTurn  = 10
	unlimitedRequests = 1 << 30
)

// meter is a stub of a model that counts its calls, as a provider does for its invoice.
type meter struct {
	*scriptedmodel.Server

	mu             sync.Mutex
	inFlight, most int
}

func newMeter() *meter {
	usage := &scriptedmodel.Usage{Input: callInput, Output: callOutput}
	return &meter{Server: scriptedmodel.New(scriptedmodel.Script{Steps: []scriptedmodel.Step{
		{Usage: usage, Times: unlimitedRequests,
			When: func(r *scriptedmodel.Request) bool { return len(r.Tools) > 0 && rand.IntN(toolCallsPerTurn) > 0 },
			Calls: []scriptedmodel.Call{{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": "date +%N",
				"security_risk": "LOW"})}}},
		{Usage: usage, Times: unlimitedRequests, Text: "Done.", When: func(*scriptedmodel.Request) bool { return true }},
	}})}
}

// ServeHTTP answers after a random delay, so that calls are in flight when their session is killed.
func (m *meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.begin(1)
	defer m.begin(-1)
	_ = cluster.Sleep(context.WithoutCancel(r.Context()), rand.N(longestCall))
	m.Server.ServeHTTP(w, r)
}

func (m *meter) begin(calls int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight += calls
	m.most = max(m.most, m.inFlight)
}

// count returns the number of calls so far, and the highest number of calls in flight.
func (m *meter) count() (calls int64, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.Spent().Input / callInput), m.most
}

// Names of ports.
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
