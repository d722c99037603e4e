// Package gitops tests Parley's health checks for GitOps tools. With `make e2e-gitops` it also
// deploys sessions from Git with code of Argo CD and Flux. This code is in the modules argocd and
// flux.
package gitops
