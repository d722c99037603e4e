// Package prometheus tests the alerts with Prometheus' own engine, which the product does not need.
package prometheus
