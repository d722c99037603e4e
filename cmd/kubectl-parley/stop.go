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

// waiting is what the commands have in common that wait for a session.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", true, "Wait, and show the steps meanwhile.")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "How long to wait. Default: as long as it takes.")
}

// bound limits how long a command waits.
func (w *waiting) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, w.timeout, fmt.Errorf("it took longer than %s", w.timeout))
}

// stop is `kubectl parley stop`.
type stop struct {
	waiting
	force bool
}

func newStop(p *plugin) *cobra.Command {
	s := &stop{}
	cmd := p.named(&cobra.Command{
		Use: "stop NAME", Short: "Stop a session and keep its workspace; start resumes it",
	}, s.run)
	cmd.Flags().BoolVar(&s.force, "force", false, "Change a field that a GitOps tool keeps.")
	s.addFlags(cmd)
	return cmd
}

func (s *stop) run(ctx context.Context, c *cluster, name string) error {
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
		// Until its pod is gone it is not Ready.
		return over && !meta.IsStatusConditionTrue(conv.Status.Conditions, v1alpha1.ConditionReconciling), nil
	})
	if err != nil {
		return fmt.Errorf("%s has not stopped: %w", name, err)
	}
	fmt.Fprintf(c.Out, "conversation.parley.dev/%s stopped\n", name)
	return nil
}

// changeSpec changes a field of a Conversation, and nothing else of it. A field that a GitOps tool
// keeps is left alone unless it is forced: the tool would set it back a moment later.
func changeSpec(ctx context.Context, c *cluster, conv *v1alpha1.Conversation, field string, force bool,
	change func(*v1alpha1.ConversationSpec)) error {
	before := conv.DeepCopy()
	change(&conv.Spec)
	if patch, err := client.MergeFrom(before).Data(conv); err != nil || string(patch) == "{}" {
		return err
	}
	if keeper := keeperOf(before, field); keeper != "" && !force {
		return fmt.Errorf("spec.%s is kept by %s, which would set it back: change it where that takes it from, or use "+
			"--force", field, keeper)
	}
	return c.Patch(ctx, conv, client.MergeFrom(before))
}
