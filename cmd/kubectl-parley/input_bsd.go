//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package main

import "golang.org/x/sys/unix"

// flushTerminal drops unread input of a terminal. 1 is FREAD of <sys/fcntl.h>.
func flushTerminal(fd int) { _ = unix.IoctlSetPointerInt(fd, unix.TIOCFLUSH, 1) }
