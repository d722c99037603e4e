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

type forward struct {
	waitFlags
	port uint16
}

func newForward(p *plugin) *cobra.Command {
	o := &forward{}
	cmd := p.named(&cobra.Command{
		Use:   "forward NAME",
		Short: "Forward a local port to a session",
		Long: `Forward a port on 127.0.0.1 to the HTTP port of a session until Ctrl-C.

The command waits until the session is running. If its pod is replaced, the same local port leads to
the new pod. The command adds no key: clients must send the value of session-key in the Secret
NAME-session.`,
	}, o.run)
	cmd.Flags().Uint16Var(&o.port, "port", 0, "The local port. Default: a free port.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "How long to wait until the session is running. Default: no limit.")
	return cmd
}

func (o *forward) run(ctx context.Context, c *cluster, name string) error {
	p := newProgress(c.ErrOut)
	for {
		if err := o.await(ctx, c, p, name); err != nil {
			return err
		}
		conv, err := c.conversation(ctx, name)
		if err != nil {
			return err
		}
		err = c.forwardPod(ctx, c.namespace, conv.PodName(), o.port, session.Port, func(port uint16) {
			o.port = port // later pods use the same port
			fmt.Fprintf(c.Out, "http://127.0.0.1:%d\n", port)
			p.say("forwarding to %s; press Ctrl-C to stop", name)
		})
		if interrupted(ctx) {
			return nil
		}
		if !errors.Is(err, portforward.ErrLostConnectionToPod) {
			return fmt.Errorf("forward to %s: %w", name, err)
		}
		p.say("connection lost")
	}
}

func (o *forward) await(ctx context.Context, c *cluster, p *progress, name string) error {
	ctx, cancel := o.bound(ctx)
	defer cancel()
	// Without this check, c.follow would wait forever for a Conversation that does not exist.
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
		return fmt.Errorf("%s is not running: %w", name, err)
	}
	return nil
}

// forwardPod forwards a port on the loopback address to a port of a pod, until the context ends or
// the connection is lost. Port 0 chooses a free port.
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
		// Only a node responds with this short text: a 404 of the API server itself has more
		// details.
		if err != nil && strings.Contains(err.Error(), "404 page not found") {
			return fmt.Errorf("the node of pod %s does not support port forwarding (nodes of `make run` never do): "+
				"connect through the facade", pod)
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

// dialer connects to a pod over a WebSocket, which can pass proxies. For older API servers, it uses
// SPDY.
func (c *cluster) dialer(namespace, pod string) (httpstream.Dialer, error) {
	url := c.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).
		Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	fallback := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, c.config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(websocket, fallback, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}
