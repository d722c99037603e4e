package main

import (
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/cmd/internal/startup"
	"github.com/parley-dev/parley/cmd/manager/onboarding"
)

// addOnboarding adds the onboarding of people to the webhook server of each replica, if there is an
// OpenID provider.
func addOnboarding(mgr ctrl.Manager, o options) error {
	if o.identity.Issuer == "" {
		return nil
	}
	provider, err := identity.NewProvider(o.identity)
	if err != nil {
		return err
	}
	mgr.GetWebhookServer().Register(onboarding.Path, onboarding.New(mgr, provider, onboarding.Options{
		Namespace: o.sessions.Namespace, ConfigMap: o.onboardingConfigMap, Namespaces: startup.SplitList(o.namespaces),
	}))
	return nil
}
