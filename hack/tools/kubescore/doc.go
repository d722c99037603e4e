// Package kubescore pins kube-score, which reviews the manifests in config.
package kubescore
