// Package prometheus tests the alerts with Prometheus' engine, as a module apart from the product.
package prometheus
