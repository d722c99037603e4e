//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package main

// flushTerminal does nothing on this system. A line that the user began before the question
// appeared, and completes later, can therefore answer the question.
func flushTerminal(int) {}
