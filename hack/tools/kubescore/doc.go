// Package kubescore pins the version of kube-score, which checks the manifests in config/.
package kubescore
