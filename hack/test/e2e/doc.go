// Package e2e (`make e2e`) tests Parley's images on a real node: containerd, a kubelet and a
// control plane run in Linux namespaces. The machine is unchanged after the run, even if the run
// fails.
package e2e
