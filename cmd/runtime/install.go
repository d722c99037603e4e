package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// programs are copied into another image: Parley's agent, the runtime and its supervisor. The
// supervisor comes last, so that its presence shows that all programs are there.
var programs = []string{"agent", "runtime", "supervisor"}

// install copies the programs from the directory of this program into another directory.
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

// copyProgram copies a program atomically.
func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	return record.Write(to, source, 0o755)
}
