// Package helm pins the version of Helm, which the tests of the chart run. Helm has its own module,
// because its many dependencies would change the dependency versions of other tools.
package helm
