package httpapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// notKept has two reasons. Full: more is handed over than is kept of a session or of its user.
// Failed: nothing can be written, as on a full volume.
var notKept = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "parley_archive_not_kept_total",
	Help: "What sessions handed over and was not kept, by reason: full or failed. They try again after the latter.",
}, []string{"reason"})

func init() {
	metrics.Registry.MustRegister(notKept)
	for _, reason := range []string{"full", "failed"} { // what begins above zero is no increase to Prometheus
		notKept.WithLabelValues(reason)
	}
}
