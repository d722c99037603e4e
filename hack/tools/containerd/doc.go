// Package containerd pins the container runtime of the end-to-end test's node.
package containerd
