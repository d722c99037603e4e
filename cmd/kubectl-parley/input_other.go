//go:build !linux

package main

// flushTerminal does nothing: a line that was not complete when the question appeared may answer it.
func flushTerminal(int) {}
