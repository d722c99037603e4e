// Package pinned pins the versions of the tools that the Makefile runs, except tools that have a
// package of their own.
package pinned
