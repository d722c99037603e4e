// Command kubectl-parley is the kubectl plugin `kubectl parley`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs may use auth plugins
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills the process
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := withArgs(newRoot(streams), os.Args).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(streams.ErrOut, "error:", printable(err.Error()))
		stop()
		os.Exit(1)
	}
}

// completer is the name of a link to this program. kubectl runs this link for shell completion.
const completer = "kubectl_complete-parley"

// withArgs gives cmd the arguments of the process; args[0] is the program name.
func withArgs(cmd *cobra.Command, args []string) *cobra.Command {
	cmd.SetArgs(args[1:])
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") == completer {
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args[1:]...))
	}
	return cmd
}
