// Package gitops tests Parley's health checks for GitOps tools. With `make e2e-gitops` it also
// deploys sessions from Git with components of Argo CD and Flux, which are in the modules argocd
// and flux beside it.
package gitops
