package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/parley-dev/parley/cmd/runtime/record"
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
	return record.Write(to, source, 0o755)
}
