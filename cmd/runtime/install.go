package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// programs are the programs to copy into another image. The supervisor comes last, so its presence
// shows that the copy is complete.
var programs = []string{"agent", "runtime", "supervisor"}

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
