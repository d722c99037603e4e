package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// agentProgram is the agent that Parley ships, which stands beside the runtime.
const agentProgram = "agent"

// install copies this program, and the shipped agent if it is beside it, into a directory, so that another image can run them.
func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	err = copyProgram(filepath.Join(filepath.Dir(self), agentProgram), filepath.Join(dir, agentProgram))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	// The runtime comes last: where it is, everything is.
	if err := copyProgram(self, filepath.Join(dir, "runtime")); err != nil {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	return nil
}

// copyProgram copies a program. The copy appears as a whole.
func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.CreateTemp(filepath.Dir(to), ".install-")
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	err = errors.Join(err, target.Chmod(0o755), target.Close())
	if err == nil {
		err = os.Rename(target.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(target.Name()))
	}
	return nil
}
