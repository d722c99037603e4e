// Package helm pins the version of Helm, which tests the chart. Helm has its own module, because
// its many dependencies would affect other tools.
package helm
