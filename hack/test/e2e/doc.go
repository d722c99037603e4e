// Package e2e runs Parley on a real node and checks it: containerd, kubelet and a control plane in
// their own namespaces, with Parley's images: `make e2e`. It leaves the machine unchanged, however
// it ends.
package e2e
