// Package gitops tests Parley's health checks for GitOps tools, and a round of GitOps with parts of
// Argo CD and of Flux: `make e2e-gitops`. The modules argocd and flux beside it have those parts.
package gitops
