// Command archive stores the data of sessions. Sessions upload it, and facades read it.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/internal/mixed"
	"github.com/parley-dev/parley/cmd/internal/startup"
)

type options struct {
	address, healthAddress, metricsAddress string
	store, signingKeyDir, namespaces       string
	certFile, keyFile                      string
	usage, month                           string
	retention                              time.Duration
	perUser                                resource.QuantityValue
}

func main() {
	o := options{}
	o.perUser.Quantity = resource.MustParse("4Gi")
	flag.StringVar(&o.store, "store", "", "The store: file:///dir or s3://bucket?region=….")
	flag.StringVar(&o.address, "bind-address", ":3001", "The address for sessions and facades.")
	flag.StringVar(&o.healthAddress, "health-probe-bind-address", ":3000", "The address of /alive and /ready.")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "The address of the metrics; 0 disables them.")
	flag.StringVar(&o.signingKeyDir, "signing-key-dir", "", "The mounted directory with the public key of session "+
		"tokens. It is reloaded when it changes.")
	flag.StringVar(&o.certFile, "tls-cert-file", "", "The certificate for HTTPS, which is read for each connection. "+
		"Sessions of older versions still use HTTP at the same address.")
	flag.StringVar(&o.keyFile, "tls-key-file", "", "The key of the certificate.")
	flag.StringVar(&o.namespaces, "namespaces", "", "The namespaces to archive, separated by commas. "+
		"Default: all.")
	flag.DurationVar(&o.retention, "retention", 24*time.Hour,
		"How long the archive keeps the data of a Conversation whose deletion it did not see.")
	flag.Var(&o.perUser, "per-user", "The storage limit of each user. 0 means no limit.")
	flag.StringVar(&o.usage, "usage", "", "Print the costs in this namespace as JSON, and exit.")
	flag.StringVar(&o.month, "month", "", "The month of --usage, such as 2026-01. Default: the current month.")
	startup.Run(0)
	if o.usage != "" {
		if err := printUsage(ctrl.SetupSignalHandler(), o, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "archive failed")
		os.Exit(1)
	}
}

// now is the clock of the ledgers. Builds with the tag testclock replace it.
var now = time.Now

func run(ctx context.Context, o options) error {
	if o.perUser.Sign() < 0 {
		return errors.New("--per-user must not be negative")
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("load the Kubernetes config: %w", err)
	}
	known, err := newConversations(ctx, cfg, startup.SplitList(o.namespaces))
	if err != nil {
		return err
	}
	archive, err := store.Open(ctx, o.store, o.perUser.Value())
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	archive.Now = now
	ready := func(ctx context.Context) error { return errors.Join(known.ready(ctx), archive.Ready(ctx)) }
	failed := make(chan error, 4)
	go func() { failed <- fmt.Errorf("watch the API server: %w", known.cache.Start(ctx)) }()
	go cleanUp(ctx, archive, known, o.retention)
	serve(failed, o.address, serverTLS(o), &http.Server{ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		// The archive refuses some requests before it reads their bodies. These limits bound the memory
		// for such bodies.
		HTTP2:   &http.HTTP2Config{MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10},
		Handler: httpapi.NewHandler(archive, known, publicKeys(o.signingKeyDir))})
	serve(failed, o.healthAddress, nil, &http.Server{Handler: httpapi.Health(ready)})
	if o.metricsAddress != "0" && o.metricsAddress != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{}))
		serve(failed, o.metricsAddress, nil, &http.Server{Handler: mux})
	}
	ctrl.Log.Info("serving", "address", o.address)
	select {
	case err := <-failed:
		if ctx.Err() == nil {
			return err
		}
	case <-ctx.Done(): // requests in flight are not acknowledged, so clients retry them
	}
	return nil
}

// serverTLS returns the configuration of HTTPS, or nil. It reads the certificate for each new
// connection, because the kubelet replaces the file. New connections are rare, because a session
// sends many requests over one connection.
func serverTLS(o options) *tls.Config {
	if o.certFile == "" {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			certificate, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
			return &certificate, err
		}}
}

// serve serves HTTP at an address. If config is not nil, it also serves HTTPS at the same address.
func serve(failed chan<- error, address string, config *tls.Config, server *http.Server) {
	server.ReadHeaderTimeout = 10 * time.Second
	listener, err := net.Listen("tcp", address)
	if err == nil && config != nil {
		listener = mixed.NewListener(listener, config)
	}
	go func() {
		if err == nil {
			err = server.Serve(listener)
		}
		failed <- fmt.Errorf("serve at %s: %w", address, err)
	}()
}

func publicKeys(dir string) func() ([]ed25519.PublicKey, error) {
	return func() ([]ed25519.PublicKey, error) {
		text, err := os.ReadFile(filepath.Join(dir, session.SigningPublicKey))
		if err != nil {
			return nil, fmt.Errorf("read the signing key: %w", err)
		}
		return session.ParsePublicKeys(text)
	}
}
