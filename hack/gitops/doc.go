// Package gitops is a round of GitOps with Argo CD's own parts: `make e2e-gitops`. What they judge, compare, apply and prune is
// in the module argocd beside it.
package gitops
