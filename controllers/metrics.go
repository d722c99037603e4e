package controllers

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// The labels of these metrics contain no names of objects, because such labels would create too
// many time series.
var (
	startSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "parley_conversation_start_seconds",
		Help:    "Time of a start or restart until RUNNING, without the wait for settings and for a slot.",
		Buckets: []float64{.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300, 600, 1800},
	})
	startsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "parley_session_starts_total",
		Help: "Session starts by outcome: running, or the reason of the failure.",
	}, []string{"outcome"})
	stopsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "parley_conversation_stops_total",
		Help: "Session stops by reason.",
	}, []string{"reason"})
	// Only sessions of users who consent to analytics are counted.
	tokensTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "parley_session_tokens_total",
		Help: "Model tokens used by ended sessions, by kind: input or output.",
	}, []string{"kind"})
	costTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "parley_session_cost_dollars_total",
		Help: "Cost of ended sessions, in US dollars.",
	})

	turnReadFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "parley_turn_read_failures_total",
		Help: "Failures of the manager to read the outcomes of turns from the archive.",
	})

	conversationsDesc = prometheus.NewDesc("parley_conversations", "Conversations by state.", []string{"state"}, nil)
)

func init() {
	metrics.Registry.MustRegister(startSeconds, startsTotal, stopsTotal, tokensTotal, costTotal, turnReadFailures)
}

// recordUsage counts the tokens and the cost of a session. It is called after the status with the
// end of the session was written. A result contains totals since the first attempt, so recordUsage
// adds only the difference from the previous result. An image with its own entry point may count
// from zero again. If a number of tokens became smaller, recordUsage therefore adds the whole
// result.
func recordUsage(previous, result *v1alpha1.ConversationResult) {
	if result == nil {
		return
	}
	since := ptr.Deref(previous, v1alpha1.ConversationResult{})
	if result.InputTokens < since.InputTokens || result.OutputTokens < since.OutputTokens {
		since = v1alpha1.ConversationResult{}
	}
	tokensTotal.WithLabelValues("input").Add(float64(result.InputTokens - since.InputTokens))
	tokensTotal.WithLabelValues("output").Add(float64(result.OutputTokens - since.OutputTokens))
	// An unknown cost is not counted.
	counted, _ := strconv.ParseFloat(since.Cost, 64)
	if cost, err := strconv.ParseFloat(result.Cost, 64); err == nil && cost > counted {
		costTotal.Add(cost - counted)
	}
}

// recordTransition counts a change of state. It is called after the status was written.
func recordTransition(c *v1alpha1.Conversation, before, after v1alpha1.ConversationStatus, now time.Time) {
	// A Conversation that was created suspended never ran, so it is not counted as a stop.
	if before.State == after.State || lifecycle.NeverReconciled(before) && after.State == v1alpha1.StateStopped &&
		after.Reason == v1alpha1.ReasonSuspended {
		return
	}
	switch after.State {
	case v1alpha1.StateRunning:
		if lifecycle.Ran(before) {
			return // an unresponsive session answers again; this is not a start
		}
		began := c.CreationTimestamp.Time
		if before.StartTime != nil {
			began = before.StartTime.Time
		}
		startSeconds.Observe(now.Sub(began).Seconds())
		startsTotal.WithLabelValues("running").Inc()
	case v1alpha1.StateStopped:
		stopsTotal.WithLabelValues(after.Reason).Inc()
		if before.State == v1alpha1.StateStarting {
			startsTotal.WithLabelValues(after.Reason).Inc()
		}
	}
}

// stateCollector counts the cached Conversations on each scrape, so that counts never drift. Only
// the leader reports the counts. All replicas cache the same Conversations, so a sum over the
// replicas would count each Conversation several times.
type stateCollector struct {
	reader  client.Reader
	elected <-chan struct{} // closed once this process leads
}

func registerStateMetric(reader client.Reader, elected <-chan struct{}) error {
	collector := stateCollector{reader, elected}
	err := metrics.Registry.Register(collector)
	// Test suites run several managers in one process, with one registry. The collector of the
	// newest manager replaces the collector of the previous one.
	if registered := (prometheus.AlreadyRegisteredError{}); errors.As(err, &registered) {
		metrics.Registry.Unregister(registered.ExistingCollector)
		err = metrics.Registry.Register(collector)
	}
	return err
}

func (stateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- conversationsDesc }

func (s stateCollector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-s.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var list v1alpha1.ConversationList
	if err := s.reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // not synced yet
	}
	counts := map[v1alpha1.ConversationState]int{v1alpha1.StateStarting: 0, v1alpha1.StateRunning: 0,
		v1alpha1.StateStopped: 0}
	for i := range list.Items {
		if state := list.Items[i].Status.State; state != "" {
			counts[state]++
		}
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(conversationsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}
