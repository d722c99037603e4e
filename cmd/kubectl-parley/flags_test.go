package main

import (
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// The flags of kubectl, such as --user, have the same meaning in every command.
func TestNoCommandShadowsAFlagOfKubectl(t *testing.T) {
	root := newRoot(genericiooptions.NewTestIOStreamsDiscard())
	for _, cmd := range root.Commands() {
		// Cobra has not added the root command's flags to cmd.Flags() yet, so VisitAll visits only
		// the command's own flags.
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if root.PersistentFlags().Lookup(flag.Name) != nil {
				t.Errorf("%s has a flag --%s of its own", cmd.Name(), flag.Name)
			}
			if short := flag.Shorthand; short != "" && root.PersistentFlags().ShorthandLookup(short) != nil {
				t.Errorf("%s has a flag -%s of its own", cmd.Name(), short)
			}
		})
	}
}
