package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/api/version"
)

// fieldOwner is the field manager of the plugin's writes.
const fieldOwner = "kubectl-parley"

// plugin holds the streams and the connection flags that all commands share.
type plugin struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
}

func newRoot(streams genericiooptions.IOStreams) *cobra.Command {
	p := &plugin{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true)}
	cmd := &cobra.Command{
		Use:           "kubectl-parley",
		Short:         "Start, stop and inspect agent sessions",
		Version:       version.Parley,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl parley"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetIn(streams.In)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	p.flags.AddFlags(cmd.PersistentFlags())
	_ = cmd.RegisterFlagCompletionFunc("namespace", p.complete(&corev1.NamespaceList{}))
	cmd.AddCommand(newStatus(p), newStart(p), newStop(p), newLogs(p), newChat(p), newDiff(p), newOpen(p), newForward(p),
		newUsage(p), newKey(p), newLogin(p), newLogout(p), newWhoami(p))
	return cmd
}

// named adds the NAME argument to a command, and connects to the cluster before the command runs.
// By default, shell completion offers the names of Conversations for NAME. NAME may be absent if
// cmd.Args allows that.
func (p *plugin) named(cmd *cobra.Command, run func(context.Context, *cluster, string) error) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = cobra.ExactArgs(1)
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = firstArgument(p.complete(&v1alpha1.ConversationList{}))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "") {
			return errors.New("the NAME is empty")
		}
		c, err := p.connect()
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, strings.Join(args, ""))
	}
	return cmd
}

// cluster is a connection to the cluster, with the selected namespace and the output streams.
type cluster struct {
	client.WithWatch
	genericiooptions.IOStreams
	core      kubernetes.Interface
	config    *rest.Config
	namespace string
}

func (p *plugin) connect() (*cluster, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // rely on API Priority and Fairness of the API server
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(corev1.AddToScheme, v1alpha1.AddToScheme)
	if err := builder.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, FieldOwner: fieldOwner})
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &cluster{WithWatch: c, IOStreams: p.IOStreams, core: core, config: config, namespace: namespace}, nil
}

func (c *cluster) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: c.namespace, Name: name}
}

func (c *cluster) conversation(ctx context.Context, name string) (*v1alpha1.Conversation, error) {
	conv := &v1alpha1.Conversation{}
	return conv, c.Get(ctx, c.key(name), conv)
}

// age formats a duration as kubectl does.
func age(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

func since(t metav1.Time, now time.Time) string { return age(now.Sub(t.Time)) }
