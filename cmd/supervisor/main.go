// Command supervisor is the first process of a session's pod. It opens the session's port as early
// as possible, and runs the runtime as a child process.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

// exitCannotRun is the exit status that shells return if a program cannot be executed.
const exitCannotRun = 126

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
	}
	os.Exit(code)
}

// run hides the image's environment variables from the runtime, and then runs the runtime. args
// contains the names of the environment variables that the pod sets. The image cannot change these
// arguments; it could change a list in an environment variable. Outside of a pod, the flag
// supervise.FromEnvironment precedes the names. If the first argument is process.ConfineCommand,
// run instead confines this process and executes the program that the last arguments name. The
// runtime starts confined programs in this way.
func run(args []string) (code int, err error) {
	if len(args) >= 3 && args[0] == process.ConfineCommand {
		return exitCannotRun, process.Become(args[1], args[2:])
	}
	outside := len(args) > 0 && args[0] == supervise.FromEnvironment
	if outside {
		args = args[1:]
	}
	if err := supervise.IsolateEnvironment(outside, args); err != nil {
		return 1, err
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	return supervise.Run(filepath.Join(filepath.Dir(self), "runtime"), "run")
}
