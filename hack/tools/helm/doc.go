// Package helm pins the Helm version that tests the chart. It is a separate module, so that its
// many dependencies do not affect the other tools.
package helm
