// Package webhook validates objects beyond schema and CEL: fields that need code, such as URLs and
// image references, and references to objects that the sender must be allowed to read.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Options are the settings of the validators.
type Options struct {
	// FacadeUser is the user name of the facade's ServiceAccount.
	FacadeUser string
	// ManagerUser is the user name of the manager's ServiceAccount.
	ManagerUser string
	// Namespace is the operator's namespace, which contains the agent catalogue.
	Namespace string
	// AgentsConfigMap is the name of the ConfigMap with the agent catalogue; empty means the
	// default name.
	AgentsConfigMap string
}

// SetupWithManager registers the validators of the three kinds. The manager's cache must index
// Conversations by v1alpha1.IndexUserSettingsName, and UserSettings by v1alpha1.IndexInheritFrom.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	// The validators read classes from the cache. Without this informer, the cache would start to
	// watch classes at the first request. The manager would then report ready too early, and could
	// not answer requests during shutdown.
	if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.SessionClass{}); err != nil {
		return fmt.Errorf("watch SessionClasses: %w", err)
	}
	if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.UserSettings{}); err != nil {
		return fmt.Errorf("watch UserSettings: %w", err)
	}
	counts, err := countConversations(ctx, mgr.GetCache())
	if err != nil {
		return fmt.Errorf("watch Conversations: %w", err)
	}
	guard := newGuard(mgr.GetClient(), mgr.GetAPIReader(), options)
	agents := agentCatalogue{Namespace: options.Namespace,
		Name: cmp.Or(options.AgentsConfigMap, v1alpha1.AgentCatalogueName)}
	return errors.Join(
		register(mgr, &v1alpha1.UserSettings{}, &userSettingsValidator{guard: guard, cache: mgr.GetClient(), agents: agents}),
		register(mgr, &v1alpha1.Conversation{}, &conversationValidator{guard: guard, agents: agents}),
		register(mgr, &v1alpha1.Conversation{}, &limitsValidator{cache: guard.cache, counts: counts}, LimitsPath),
		register(mgr, &v1alpha1.SessionClass{}, sessionClassValidator{}))
}

func register[T runtime.Object](mgr ctrl.Manager, object T, validator admission.Validator[T], path ...string) error {
	builder := ctrl.NewWebhookManagedBy(mgr, object).WithValidator(validator)
	for _, custom := range path {
		builder = builder.WithValidatorCustomPath(custom)
	}
	if err := builder.Complete(); err != nil {
		return fmt.Errorf("register the validator of %T: %w", object, err)
	}
	return nil
}

// refusal returns one error that contains all errors of an object; nil if there are none.
func refusal(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind(kind).GroupKind(), name, errs)
}
