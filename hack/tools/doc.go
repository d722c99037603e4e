// Package tools pins the tools that the Makefile runs.
package tools
