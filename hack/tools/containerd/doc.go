// Package containerd pins what runs the containers of the end-to-end test's node.
package containerd
