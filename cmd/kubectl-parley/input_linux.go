package main

import "golang.org/x/sys/unix"

// flushTerminal drops unread input of a terminal.
func flushTerminal(fd int) { _ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }
