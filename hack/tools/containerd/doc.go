// Package containerd pins the version of containerd, which the end-to-end tests run.
package containerd
