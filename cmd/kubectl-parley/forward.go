package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// forward is `kubectl parley forward`.
type forward struct {
	waiting
	port uint16
}

func newForward(p *plugin) *cobra.Command {
	o := &forward{}
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

func (o *forward) run(ctx context.Context, c *cluster, name string) error {
	p := newProgress(c.ErrOut)
	for {
		if err := o.await(ctx, c, p, name); err != nil {
			return err
		}
		err := c.forwardPod(ctx, c.namespace, v1alpha1.SessionName(name), o.port, session.Port, func(port uint16) {
			o.port = port // a later pod is reached at the same one
			fmt.Fprintf(c.Out, "http://127.0.0.1:%d\n", port)
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

// forwardPod leads a port of loopback, or a free one where it is 0, to a port of a pod until the
// context ends or the connection is lost.
func (c *cluster) forwardPod(ctx context.Context, namespace, pod string, port, remote uint16,
	ready func(port uint16)) error {
	dialer, err := c.dialer(namespace, pod)
	if err != nil {
		return err
	}
	opened := make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, []string{"127.0.0.1"},
		[]string{fmt.Sprintf("%d:%d", port, remote)}, opened, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case err := <-done:
		// The API server itself says more of what it does not find.
		if err != nil && strings.Contains(err.Error(), "404 page not found") {
			return fmt.Errorf("the node of pod %s has no port-forward, as one of `make run` has none: only the facade leads "+
				"to its sessions", pod)
		}
		return err
	case <-opened:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	ready(ports[0].Local)
	return <-done
}

// dialer opens a connection to a pod: over a WebSocket, as proxies like it, or as older API servers
// want it.
func (c *cluster) dialer(namespace, pod string) (httpstream.Dialer, error) {
	url := c.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).
		Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, c.config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(websocket, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}
