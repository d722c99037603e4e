package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// completionTimeout bounds the time that pressing the tab key may take.
const completionTimeout = 3 * time.Second

// completion offers the values of a command's only argument.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

func (p *plugin) completeConversations(cmd *cobra.Command, args []string, word string) ([]string,
	cobra.ShellCompDirective) {
	return p.complete(cmd, args, word, &v1alpha1.ConversationList{})
}

func (p *plugin) completeSettings(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return p.complete(cmd, args, word, &v1alpha1.UserSettingsList{})
}

func (p *plugin) completeNamespaces(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return p.complete(cmd, nil, word, &corev1.NamespaceList{})
}

// complete a word with the names of the objects that the cluster lists.
func (p *plugin) complete(cmd *cobra.Command, args []string, word string, list client.ObjectList) ([]string,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
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

// flagCompletion completes the value of a flag, whatever arguments stand before it.
func flagCompletion(complete completion) completion {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, nil, word)
	}
}
