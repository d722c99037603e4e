// Package installed tests the manifests of config/ on a real API server: the manager, the archive
// and the facade run as processes, with the arguments of their Deployments and the identities and
// rights of their ServiceAccounts.
package installed
