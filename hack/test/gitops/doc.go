// Package gitops tests Parley's health checks for GitOps tools, and GitOps with components of Argo
// CD and Flux: `make e2e-gitops`. The modules argocd and flux beside it contain those components.
package gitops
