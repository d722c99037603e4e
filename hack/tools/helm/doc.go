// Package helm pins the Helm that the chart is tested with. Its dependencies would be many of the
// other tools' own.
package helm
