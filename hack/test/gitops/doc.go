// Package gitops tests Parley's health checks for GitOps tools. `make e2e-gitops` also deploys
// sessions from Git, and uses code of Argo CD and Flux for that. This code is in the modules argocd
// and flux.
package gitops
