package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// completionTimeout bounds what a press of the tab key may take.
const completionTimeout = 3 * time.Second

// completion of a command's one argument by the names that exist.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

func (p *plugin) completeConversations(cmd *cobra.Command, args []string, word string) ([]string,
	cobra.ShellCompDirective) {
	return p.complete(cmd, args, word, func(ctx context.Context, c *cluster) (names []string, err error) {
		var list v1alpha1.ConversationList
		err = c.List(ctx, &list, client.InNamespace(c.namespace))
		for _, conv := range list.Items {
			names = append(names, conv.Name+"\t"+string(conv.Status.State)+" "+conv.Status.Reason)
		}
		return names, err
	})
}

func (p *plugin) completeSettings(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return p.complete(cmd, args, word, func(ctx context.Context, c *cluster) (names []string, err error) {
		var list v1alpha1.UserSettingsList
		err = c.List(ctx, &list, client.InNamespace(c.namespace))
		for _, settings := range list.Items {
			names = append(names, settings.Name)
		}
		return names, err
	})
}

func (p *plugin) completeNamespaces(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return p.complete(cmd, nil, word, func(ctx context.Context, c *cluster) (names []string, err error) {
		var list corev1.NamespaceList
		err = c.List(ctx, &list)
		for _, ns := range list.Items {
			names = append(names, ns.Name)
		}
		return names, err
	})
}

func (p *plugin) complete(cmd *cobra.Command, args []string, word string, names func(context.Context,
	*cluster) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := p.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	all, err := names(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var fitting []string
	for _, name := range all {
		if strings.HasPrefix(name, word) {
			fitting = append(fitting, name)
		}
	}
	return fitting, cobra.ShellCompDirectiveNoFileComp
}

// flagCompletion is a completion of a flag's value, which arguments before it do not end.
func flagCompletion(complete completion) completion {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, nil, word)
	}
}
