package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/portforward"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// forward is `kubectl parley forward`.
type forward struct {
	*plugin
	waiting
	port uint16
}

func newForward(p *plugin) *cobra.Command {
	o := &forward{plugin: p}
	cmd := p.named(&cobra.Command{
		Use:   "forward NAME",
		Short: "Forward a port of this machine to a session",
		Long: `Forward a port of this machine's loopback to the port that a session serves, until Ctrl-C.

A session that starts is waited for. When its pod is replaced, the port leads to the new one.
Forwarding adds no key: what the session serves asks for one as it does within the cluster.`,
	}, o.run)
	cmd.Flags().Uint16Var(&o.port, "port", 0, "The port of this machine. Default: one that is free.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "How long to wait for the session. Default: as long as it takes.")
	return cmd
}

func (o *forward) run(ctx context.Context, name string) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	p := newProgress(o.ErrOut)
	for {
		if err := o.await(ctx, c, p, name); err != nil {
			return err
		}
		err := c.forward(ctx, name, o.port, func(port uint16) {
			if o.port != port {
				o.port = port // a later pod is reached at the same one
			}
			fmt.Fprintf(o.Out, "http://127.0.0.1:%d\n", port)
			p.say("forwarding to %s; Ctrl-C ends it", name)
		})
		if interrupted(ctx) {
			return nil
		}
		if !errors.Is(err, portforward.ErrLostConnectionToPod) {
			return fmt.Errorf("forward to %s: %w", name, err)
		}
		p.say("the connection is lost")
	}
}

// await waits until the session runs.
func (o *forward) await(ctx context.Context, c *cluster, p *progress, name string) error {
	ctx, cancel := o.bound(ctx)
	defer cancel()
	// Who watches what is not there waits for ever, also after a Conversation that was forwarded to
	// is deleted.
	if _, err := c.conversation(ctx, name); err != nil {
		return err
	}
	err := c.follow(ctx, p, name, func(conv *v1alpha1.Conversation) (bool, error) {
		switch {
		case !observed(conv):
			return false, nil
		case conv.Status.State == v1alpha1.StateStopped, stalled(conv):
			return false, problemOf(conv)
		}
		return conv.Status.State == v1alpha1.StateRunning, nil
	})
	if err != nil {
		return fmt.Errorf("%s does not run: %w", name, err)
	}
	return nil
}
