// Package webhook validates what schema and CEL cannot: what needs code, such as
// URLs and image references, and what needs other objects, such as the right to
// read the Secrets that an object refers to.
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

// Options of the validators.
type Options struct {
	// FacadeUser is the user name of the facade's ServiceAccount.
	FacadeUser string
	// ManagerUser is the user name of the manager's ServiceAccount.
	ManagerUser string
	// Namespace of the operator, where the agent catalogue is.
	Namespace string
	// AgentsConfigMap is the agent catalogue; it has its usual name where this is empty.
	AgentsConfigMap string
}

// SetupWithManager registers the validators of the three kinds. The manager's cache must index
// Conversations by v1alpha1.IndexUserSettingsName.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	// The validators read classes from the cache. Without this it would begin to watch them at the
	// first question: a manager would not be ready when it says so, and one that is told to stop
	// would have no answer.
	if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.SessionClass{}); err != nil {
		return fmt.Errorf("watch SessionClasses: %w", err)
	}
	guard := newGuard(mgr.GetClient(), mgr.GetAPIReader(), options)
	agents := cmp.Or(options.AgentsConfigMap, v1alpha1.AgentCatalogueName)
	settings := &userSettingsValidator{guard: guard, cache: mgr.GetClient(), namespace: options.Namespace, agents: agents}
	return errors.Join(
		register(mgr, &v1alpha1.UserSettings{}, settings),
		register(mgr, &v1alpha1.Conversation{}, &conversationValidator{guard: guard}),
		register(mgr, &v1alpha1.SessionClass{}, sessionClassValidator{}))
}

func register[T runtime.Object](mgr ctrl.Manager, object T, validator admission.Validator[T]) error {
	if err := ctrl.NewWebhookManagedBy(mgr, object).WithValidator(validator).Complete(); err != nil {
		return fmt.Errorf("register the validator of %T: %w", object, err)
	}
	return nil
}

// refusal is the answer to an object of a kind with these errors; none is no refusal.
func refusal(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind(kind).GroupKind(), name, errs)
}
