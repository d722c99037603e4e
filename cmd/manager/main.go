// Command manager runs Parley's controllers and its webhook.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/cmd/internal/startup"
	"github.com/parley-dev/parley/controllers"
	"github.com/parley-dev/parley/webhook"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

type options struct {
	namespaces     string
	accounts       accounts
	sessions       controllers.Options
	egressAllow    string
	workers        int
	leaderElect    bool
	metricsAddress string
	healthAddress  string
	webhook        webhookOptions
	shutdownDelay  time.Duration
	identity       identity.Options
	// onboardingConfigMap is the name of a ConfigMap in the operator's namespace.
	onboardingConfigMap string
}

// accounts are Parley's ServiceAccounts in its namespace.
type accounts struct{ manager, facade string }

func main() {
	var o options
	flag.StringVar(&o.sessions.Namespace, "namespace", os.Getenv("POD_NAMESPACE"),
		"The namespace of the manager. Default: $POD_NAMESPACE.")
	flag.StringVar(&o.namespaces, "namespaces", "", "The namespaces to watch, separated by commas. Default: all.")
	flag.StringVar(&o.accounts.manager, "service-account", "parley-manager", "The ServiceAccount of the manager.")
	flag.StringVar(&o.accounts.facade, "facade-service-account", "parley-facade", "The ServiceAccount of the facade.")
	flag.StringVar(&o.sessions.SigningSecret, "signing-secret", session.SigningSecret,
		"The Secret with the key that signs session tokens.")
	flag.StringVar(&o.sessions.AgentsConfigMap, "agents-configmap", v1alpha1.AgentCatalogueName,
		"The ConfigMap with the agents that settings may name.")
	flag.StringVar(&o.sessions.ModelsConfigMap, "models-configmap", v1alpha1.ModelsName,
		"The ConfigMap with the prices of models.")
	flag.StringVar(&o.sessions.RuntimeImage, "runtime-image", "",
		"The image with the session runtime. It is also the default image of sessions.")
	flag.StringVar(&o.egressAllow, "session-egress-allow", "", "Private address ranges that sessions may reach, as CIDRs "+
		"separated by commas.")
	flag.StringVar(&o.sessions.SearchMCPURL, "search-mcp-url", "", "The URL of an MCP server for web search, over "+
		"streamable HTTP. Sessions of users with a search key can use it.")
	flag.StringVar(&o.sessions.ArchiveURL, "archive-url", "", "The http or https URL of the archive, which stores the "+
		"events of sessions. Without an archive, events are deleted with the workspace.")
	flag.BoolVar(&o.sessions.ArchiveCertificate, "archive-certificate", false, "Create and renew the archive's "+
		"certificate. Sessions and the manager then accept the archive only with this certificate.")
	flag.IntVar(&o.workers, "workers", 16, "Concurrent reconciliations per kind.")
	flag.BoolVar(&o.leaderElect, "leader-elect", true, "Elect a leader, so that only one of several managers is active.")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443",
		"The address of the metrics, served over HTTPS to authorized readers; 0 disables them.")
	flag.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "The address of /healthz and /readyz.")
	flag.StringVar(&o.webhook.address, "webhook-bind-address", ":9443", "The HTTPS address of the webhook.")
	flag.StringVar(&o.webhook.certDir, "webhook-cert-dir", "/tmp/parley-webhook",
		"A private directory for the webhook's certificate.")
	flag.StringVar(&o.webhook.secret, "webhook-cert-secret", "parley-webhook-cert",
		"The Secret with the webhook's certificate.")
	flag.StringVar(&o.webhook.service, "webhook-service", "parley-webhook", "The Service of the webhook.")
	flag.StringVar(&o.webhook.configuration, "webhook-configuration", "parley-webhook",
		"The ValidatingWebhookConfiguration of the webhook.")
	flag.StringVar(&o.webhook.extraDNSName, "webhook-extra-dns-name", "", "An extra name in the webhook's certificate.")
	flag.BoolVar(&o.webhook.rotate, "webhook-cert-rotation", true, "Create and renew the webhook's certificate. Set it "+
		"to false if cert-manager creates the certificate.")
	flag.DurationVar(&o.shutdownDelay, "shutdown-delay", 5*time.Second,
		"How long the webhook serves requests on shutdown.")
	o.identity.AddFlags(flag.CommandLine)
	flag.StringVar(&o.onboardingConfigMap, "onboarding-configmap", v1alpha1.OnboardingName,
		"The ConfigMap that maps groups of the OpenID provider to new UserSettings.")
	startup.Run(64 << 20)
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "manager failed")
		os.Exit(1)
	}
}

// check returns the first error of the flags, and parses the flags that are lists.
func (o *options) check() error {
	if o.sessions.Namespace == "" {
		return errors.New("set --namespace or $POD_NAMESPACE to the manager's namespace")
	}
	if o.sessions.RuntimeImage == "" {
		return errors.New("set --runtime-image to the image with the session runtime")
	}
	o.sessions.EgressAllow, o.sessions.Namespaces = startup.SplitList(o.egressAllow), startup.SplitList(o.namespaces)
	for _, cidr := range o.sessions.EgressAllow {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return fmt.Errorf("--session-egress-allow: %w", err)
		}
	}
	for name, address := range map[string]string{"search-mcp-url": o.sessions.SearchMCPURL,
		"archive-url": o.sessions.ArchiveURL} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Host == "" || u.User != nil ||
			u.Scheme != "http" && u.Scheme != "https") {
			return fmt.Errorf("--%s must be an http or https URL without a user name", name)
		}
	}
	if o.sessions.ArchiveCertificate && !strings.HasPrefix(o.sessions.ArchiveURL, "https://") {
		return errors.New("--archive-certificate needs an https URL in --archive-url")
	}
	return o.identity.Check()
}

func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	cert := newCertificate(o.sessions.Namespace, o.webhook)
	mgr, server, err := newManager(o, cert)
	if err != nil {
		return err
	}
	if err := controllers.SetupWithManager(ctx, mgr, o.sessions); err != nil {
		return err
	}
	if err := webhook.SetupWithManager(ctx, mgr, webhook.Options{
		FacadeUser:      serviceAccount(o.sessions.Namespace, o.accounts.facade),
		ManagerUser:     serviceAccount(o.sessions.Namespace, o.accounts.manager),
		Namespace:       o.sessions.Namespace,
		AgentsConfigMap: o.sessions.AgentsConfigMap,
	}); err != nil {
		return fmt.Errorf("set up the webhook: %w", err)
	}
	if err := addOnboarding(mgr, o); err != nil {
		return fmt.Errorf("set up onboarding: %w", err)
	}
	if err := cert.addTo(mgr); err != nil {
		return err
	}
	if err := addChecks(mgr, cert.trusted); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return err
	}
	return server.stop(o.shutdownDelay)
}

func newManager(o options, cert *certificate) (ctrl.Manager, *lingering, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("load the Kubernetes config: %w", err)
	}
	// Disable the client-side rate limit: the API server protects itself with API Priority and
	// Fairness, and a second limit would only delay requests under load.
	cfg.QPS = -1
	scheme, err := controllers.NewScheme()
	if err != nil {
		return nil, nil, err
	}
	host, port, err := splitAddress(o.webhook.address)
	if err != nil {
		return nil, nil, fmt.Errorf("--webhook-bind-address: %w", err)
	}
	modernTLS := func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }

	managerOptions := controllers.ManagerOptions(scheme, o.workers, controllers.Scope{Operator: o.sessions.Namespace,
		Namespaces: startup.SplitList(o.namespaces)})
	managerOptions.LeaderElection = o.leaderElect
	managerOptions.LeaderElectionID = "parley-manager"
	managerOptions.LeaderElectionNamespace = o.sessions.Namespace
	// Release the lease on shutdown, so that the next leader need not wait until the lease expires.
	// This is safe because the process ends right after the release.
	managerOptions.LeaderElectionReleaseOnCancel = true
	// The timeout is shorter than the pod's grace period. If a step of the shutdown hangs, the
	// manager still ends before the kubelet kills it.
	managerOptions.GracefulShutdownTimeout = ptr.To(10 * time.Second)
	managerOptions.HealthProbeBindAddress = o.healthAddress
	managerOptions.Metrics = metricsserver.Options{
		BindAddress:    o.metricsAddress,
		SecureServing:  true,
		FilterProvider: authorizeMetrics,
		TLSOpts:        []func(*tls.Config){modernTLS},
	}
	server := newLingering(crwebhook.NewServer(crwebhook.Options{
		Host: host, Port: port, TLSOpts: []func(*tls.Config){modernTLS, cert.serve},
	}))
	managerOptions.WebhookServer = server
	mgr, err := ctrl.NewManager(cfg, managerOptions)
	if err != nil {
		return nil, nil, fmt.Errorf("create the manager: %w", err)
	}
	return mgr, server, nil
}

// addChecks adds the probes. Ready means that the cache is filled and the webhook serves a
// certificate that the API server trusts.
func addChecks(mgr ctrl.Manager, trusted <-chan struct{}) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("webhook", func(req *http.Request) error {
		select {
		case <-trusted:
			return mgr.GetWebhookServer().StartedChecker()(req)
		default:
			return errors.New("the webhook has no certificate yet")
		}
	}); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("cache", func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the informer cache is not synced yet")
		}
		return nil
	})
}

func serviceAccount(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	return host, port, err
}
