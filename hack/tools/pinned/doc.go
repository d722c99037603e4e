// Package pinned pins the versions of other tools that the Makefile runs.
package pinned
