// Command supervisor is the first process of a session's pod. It opens the session's port as early
// as possible and runs the runtime beside it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	switch {
	case len(args) == 0:
		if err := supervise.IgnoreImage(); err != nil {
			return 1, err
		}
	case len(args) > 1 || args[0] != supervise.FromEnvironment:
		return 2, fmt.Errorf("usage: supervisor [%s]", supervise.FromEnvironment)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	return supervise.Run(filepath.Join(filepath.Dir(self), "runtime"), "run")
}
