package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// forward leads a port of loopback, or a free one where it is 0, to the session's port until the
// context ends or the connection is lost. Commands that talk with a session reach it through here.
func (c *cluster) forward(ctx context.Context, conversation string, port uint16, ready func(port uint16)) error {
	return c.forwardPod(ctx, c.namespace, v1alpha1.SessionName(conversation), port, session.Port, ready)
}

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
