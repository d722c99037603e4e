package store

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
)

// spentDollars counts the costs that this process wrote to the ledgers. It has no label for the
// user: there may be many users, and metrics are widely readable. The label of the namespace is
// session_namespace, because Prometheus itself sets a label with the name namespace.
var spentDollars = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "parley_archive_spent_dollars_total",
	Help: "Costs of model calls in US dollars that this process recorded, by the namespace of the session.",
}, []string{"session_namespace"})

func init() { metrics.Registry.MustRegister(spentDollars) }

func countSpent(namespace string, amount session.Dollars) {
	if amount > 0 {
		spentDollars.WithLabelValues(namespace).Add(float64(amount) / float64(session.Dollar))
	}
}
