// Package prometheus tests the alerts with Prometheus's query engine. It is a separate module, so
// that Parley does not depend on Prometheus.
package prometheus
