// Package version holds the version of Parley.
package version

// Parley is the version of all programs, the chart and the HTTP API.
const Parley = "0.2.0"
