package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// programs are what another image is given to run: the agent that Parley ships, the runtime, and
// what supervises it. That one comes last: where it is, everything is.
var programs = []string{"agent", "runtime", "supervisor"}

// install copies the programs, which stand beside this one, into a directory.
func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, program := range programs {
		if err := copyProgram(filepath.Join(filepath.Dir(self), program), filepath.Join(dir, program)); err != nil {
			return fmt.Errorf("install into %s: %w", dir, err)
		}
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
