// Package e2e tests Parley's images on a real node, with `make e2e`. containerd, a kubelet and a
// control plane run in Linux namespaces. Every run restores the machine, even if the run fails.
// Only installed Debian packages stay.
package e2e
