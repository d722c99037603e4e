package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// completionTimeout limits the delay after the Tab key.
const completionTimeout = 3 * time.Second

// complete offers the names of the objects of a kind. For Conversations, it also shows the state.
func (p *plugin) complete(list client.ObjectList) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		c, err := p.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		if err := c.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			name := item.(client.Object).GetName()
			if conv, ok := item.(*v1alpha1.Conversation); ok {
				name += "\t" + string(conv.Status.State) + " " + conv.Status.Reason
			}
			if strings.HasPrefix(name, word) {
				names = append(names, name)
			}
			return nil
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func firstArgument(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, word)
	}
}
