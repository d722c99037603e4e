// Package pinned pins the tools that the Makefile runs.
package pinned
