package httpapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// notKept counts uploads that were not stored. The reason is "full" if the session or its user is
// over the limit. It is "failed" if the store cannot be written, for example because the volume has
// no space.
var notKept = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "parley_archive_not_kept_total",
	Help: "Uploads that the archive did not store, by reason: full or failed. Failed uploads are retried.",
}, []string{"reason"})

// refusedReservations has no label for the user: there may be many users, and metrics are widely
// readable.
var refusedReservations = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "parley_archive_spend_refused_total",
	Help: "Reservations that a spending limit refused, by scope (user or namespace) and period (day or month).",
}, []string{"session_namespace", "scope", "period"})

func init() {
	metrics.Registry.MustRegister(notKept, refusedReservations)
	for _, reason := range []string{"full", "failed"} { // Prometheus sees an increase only after a zero
		notKept.WithLabelValues(reason)
	}
}
