// Command facade serves Parley's HTTP operations.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
	"github.com/parley-dev/parley/cmd/facade/audit"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/facade/server"
	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/cmd/internal/startup"
)

// drain limits the wait for requests in flight when the facade stops. A request takes at most 25
// seconds after its body was read. If the client is still sending the body when drain ends, the
// request is aborted before anything is stored.
const drain = 26 * time.Second

type options struct {
	address        string
	metricsAddress string
	certFile       string
	keyFile        string
	shutdownDelay  time.Duration
	corsOrigins    string
	trustedProxies string
	namespace      string
	archiveURL     string
	archiveCAFile  string
	namespaces     string
	agents, models string
	identity       identity.Options
	scopes         string
	onboardingURL  string
	onboardingCA   string
	auditLog       string
	server         server.Options
}

func main() {
	o := options{server: server.DefaultOptions()}
	flag.StringVar(&o.address, "bind-address", ":3000", "The address of the HTTP API.")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "The address of the metrics; 0 disables them.")
	flag.StringVar(&o.certFile, "tls-cert-file", "", "The certificate for HTTPS. It is reloaded when it "+
		"changes.")
	flag.StringVar(&o.keyFile, "tls-key-file", "", "The key of the certificate.")
	flag.DurationVar(&o.shutdownDelay, "shutdown-delay", 3*time.Second,
		"How long the facade still serves requests on shutdown after /ready begins to fail.")
	flag.StringVar(&o.namespaces, "namespaces", "", "The namespaces whose users are served, separated by commas. "+
		"Default: all.")
	flag.StringVar(&o.corsOrigins, "cors-origins", "", "Origins that may call the API, separated by commas; * allows any.")
	flag.StringVar(&o.trustedProxies, "trusted-proxies", "", "Proxies whose X-Forwarded-Proto and X-Forwarded-For "+
		"headers are trusted, as IP addresses or CIDRs separated by commas.")
	flag.StringVar(&o.namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "parley-system"),
		"The operator's namespace, with the ConfigMaps of agents and models. Default: $POD_NAMESPACE.")
	flag.StringVar(&o.agents, "agents-configmap", v1alpha1.AgentCatalogueName,
		"The ConfigMap with the agents that settings may name.")
	flag.StringVar(&o.models, "models-configmap", v1alpha1.ModelsName, "The ConfigMap with the prices of models.")
	flag.StringVar(&o.server.SigningKeyDir, "signing-key-dir", "", "The mounted directory with the key that signs "+
		"session tokens. It is reloaded when it changes.")
	flag.Int64Var(&o.server.Limits.MaxBody, "max-body-bytes", o.server.Limits.MaxBody,
		"The largest request body.")
	flag.Float64Var(&o.server.Limits.Rate, "user-rate", o.server.Limits.Rate,
		"Maximum average number of requests per second of each user. 0 means no limit.")
	flag.IntVar(&o.server.Limits.Burst, "user-burst", o.server.Limits.Burst, "Maximum burst of requests of each user.")
	flag.StringVar(&o.archiveURL, "archive", "", "The http or https URL of the archive, which stores the "+
		"events of sessions. Without an archive, events are deleted with the workspace.")
	flag.StringVar(&o.archiveCAFile, "archive-ca-file", "", "The file with the certificates of the archive's "+
		"authorities. No other authority is trusted. It is read for each connection. Default: the system's authorities.")
	o.addSignInFlags()
	startup.Run(0)
	o.server.CORSOrigins = startup.SplitList(o.corsOrigins)

	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "facade failed")
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if err := o.setUpSignIn(); err != nil {
		return err
	}
	if o.server.Audit, err = audit.Open(o.auditLog, metrics.Registry); err != nil {
		return err
	}
	if o.server.TrustedProxies, err = auth.ParseProxies(o.trustedProxies); err != nil {
		return fmt.Errorf("--trusted-proxies: %w", err)
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("load the Kubernetes config: %w", err)
	}
	// The cache keeps running after the stop signal, because requests in flight need it.
	working, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	objects, err := cluster.New(working, cfg, o.namespace, cluster.Options{Namespaces: startup.SplitList(o.namespaces),
		Agents: o.agents, Models: o.models})
	if err != nil {
		return err
	}
	failed := make(chan error, 6)
	go func() { failed <- fmt.Errorf("watch the API server: %w", objects.Start(working)) }()

	signer := live.NewSigner(o.server.SigningKeyDir)
	if o.archiveURL != "" {
		if !strings.HasPrefix(o.archiveURL, "http://") && !strings.HasPrefix(o.archiveURL, "https://") {
			return errors.New("--archive must be an http or https URL")
		}
		archive := archiveclient.New(o.archiveURL, o.archiveCAFile, signer.ArchiveToken)
		o.server.Archive, o.server.Usage = archive, archive.Usage(signer.UsageToken)
	}
	handler := server.New(objects, o.server, metrics.Registry)
	listening := &http.Server{
		Addr:              o.address,
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       server.ReadTimeout,
		WriteTimeout:      server.ReadTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10, // an ID token contains all groups of the person
	}
	if err := serveTLS(working, listening, o, failed); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	withTLS := listening.TLSConfig != nil // read before Serve, which changes TLSConfig
	go func() {
		if withTLS {
			failed <- fmt.Errorf("serve HTTPS: %w", listening.ServeTLS(listener, "", ""))
			return
		}
		failed <- fmt.Errorf("serve HTTP: %w", listening.Serve(listener))
	}()
	serveMetrics(o.metricsAddress, failed)
	ctrl.Log.Info("serving", "address", listener.Addr().String(), "tls", withTLS, "signingKey", signer.Ready() == nil)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	return stop(listening, handler, o.shutdownDelay)
}

// stop makes /ready fail, so that no new requests arrive, and then finishes the requests in flight.
func stop(listening *http.Server, handler *server.Handler, delay time.Duration) error {
	handler.Stopping()
	time.Sleep(delay) // until load balancers have noticed
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if err := listening.Shutdown(ctx); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// serveTLS configures the certificate files, if any. They are reloaded when they change.
func serveTLS(ctx context.Context, listening *http.Server, o options, failed chan<- error) error {
	switch {
	case o.certFile == "" && o.keyFile == "":
		return nil
	case o.certFile == "" || o.keyFile == "":
		return errors.New("set both --tls-cert-file and --tls-key-file, or neither")
	}
	watcher, err := certwatcher.New(o.certFile, o.keyFile)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	go func() {
		if err := watcher.Start(ctx); err != nil {
			failed <- fmt.Errorf("watch the certificate: %w", err)
		}
	}()
	listening.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate}
	return nil
}

func serveMetrics(address string, failed chan<- error) {
	if address == "0" || address == "" {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{}))
	listening := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- fmt.Errorf("serve metrics: %w", listening.ListenAndServe()) }()
}
