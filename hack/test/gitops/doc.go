// Package gitops is a round of GitOps with parts of Argo CD and of Flux: `make e2e-gitops`. What
// they judge, compare, apply and prune is in the modules argocd and flux beside it.
package gitops
