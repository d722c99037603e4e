// Package installed tests what config/ installs, on a real API server: the manager and the facade
// run as processes, with the arguments of their Deployments and the identities and rights of their
// ServiceAccounts.
package installed
