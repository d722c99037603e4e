// Package prometheus tests the alerts with Prometheus' engine. It is a separate module, so that the
// product does not depend on Prometheus.
package prometheus
