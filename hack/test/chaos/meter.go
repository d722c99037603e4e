package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/local/cluster"
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

// meter is a stub of a model. It counts the calls that it gets, as a provider does for an invoice.
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
