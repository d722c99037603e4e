package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// install copies this program into a directory, so that another image can run it. The copy appears as a whole.
func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	source, err := os.Open(self)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.CreateTemp(dir, ".runtime-")
	if err != nil {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	_, err = io.Copy(target, source)
	err = errors.Join(err, target.Chmod(0o755), target.Close())
	if err == nil {
		err = os.Rename(target.Name(), filepath.Join(dir, "runtime"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("install into %s: %w", dir, err), os.Remove(target.Name()))
	}
	return nil
}
