// Package helm pins the version of Helm, because the chart's tests run Helm. Helm has its own
// module, because its many dependencies would change the dependency versions of other tools.
package helm
