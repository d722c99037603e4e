// Package installed tests the manifests of config/ on a real API server. The manager, the archive
// and the facade run as processes. They have the arguments of their Deployments and the rights of
// their ServiceAccounts.
package installed
