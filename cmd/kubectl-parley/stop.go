package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (w *waitFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", true, "Show the progress, and wait until the session has started or stopped.")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "How long to wait. Default: no limit.")
}

func (w *waitFlags) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, w.timeout, fmt.Errorf("timed out after %s", w.timeout))
}

type stop struct {
	facadeFlags
	waitFlags
	force bool
}

func newStop(p *plugin) *cobra.Command {
	s := &stop{}
	cmd := p.named(&cobra.Command{
		Use: "stop NAME", Short: "Stop a session; the start command resumes it",
	}, s.run)
	cmd.Flags().BoolVar(&s.force, "force", false, "Make the change even if a GitOps tool manages the field.")
	s.waitFlags.addFlags(cmd)
	s.addPersonFlags(cmd)
	return cmd
}

func (s *stop) run(ctx context.Context, c *cluster, name string) error {
	user, err := s.person(newProgress(c.ErrOut).say)
	if err != nil {
		return err
	}
	if user != nil {
		return s.runAs(ctx, c, user, name)
	}
	conv, err := c.conversation(ctx, name)
	if err != nil {
		return err
	}
	if err := changeSpec(ctx, c, conv, "suspend", s.force,
		func(spec *v1alpha1.ConversationSpec) { spec.Suspend = true }); err != nil || !s.wait {
		return err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	generation := conv.Generation
	err = c.follow(ctx, newProgress(c.ErrOut), name, func(conv *v1alpha1.Conversation) (bool, error) {
		over := conv.Status.ObservedGeneration >= generation && conv.Status.State == v1alpha1.StateStopped
		// The condition Reconciling is true until the pod is gone.
		return over && !meta.IsStatusConditionTrue(conv.Status.Conditions, v1alpha1.ConditionReconciling), nil
	})
	if err != nil {
		return fmt.Errorf("%s has not stopped: %w", name, err)
	}
	fmt.Fprintf(c.Out, "conversation.parley.dev/%s stopped\n", name)
	return nil
}

// changeSpec patches one field of a Conversation. If a GitOps tool manages the field, changeSpec
// fails unless force is set, because the tool would revert the change.
func changeSpec(ctx context.Context, c *cluster, conv *v1alpha1.Conversation, field string, force bool,
	change func(*v1alpha1.ConversationSpec)) error {
	before := conv.DeepCopy()
	change(&conv.Spec)
	if patch, err := client.MergeFrom(before).Data(conv); err != nil || string(patch) == "{}" {
		return err
	}
	if manager := before.GitOpsManager(field); manager != "" && !force {
		return fmt.Errorf("spec.%s is managed by %s, which would revert the change: change the field at its source, "+
			"or use --force", field, manager)
	}
	return c.Patch(ctx, conv, client.MergeFrom(before))
}
