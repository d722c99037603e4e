package webhook

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups=parley.dev,resources=usersettings,verbs=get

// guard finds out what the sender of a request may read, so that nobody reads
// through a session what they may not read themselves.
type guard struct {
	// cache has the classes.
	cache client.Reader
	// reviews are asked for here.
	reviews client.Writer
	// reader is not cached: a decision about access rests on what is, not on what was.
	reader client.Reader
	// keepers are the users who may refer to what Parley keeps for an object, though they may not
	// read it.
	keepers sets.Set[string]
	// facade is the one of the keepers that faces the network.
	facade string
}

func newGuard(c client.Client, live client.Reader, options Options) guard {
	return guard{
		cache: patient{c}, reviews: c, reader: patient{live},
		keepers: sets.New(options.FacadeUser, options.ManagerUser).Delete(""),
		facade:  options.FacadeUser,
	}
}

// request is one admission request under guard.
type request struct {
	guard
	namespace string
	user      authenticationv1.UserInfo
	// keptBy are the labels, any one of which marks a Secret that Parley keeps for the object.
	keptBy map[string]string
}

func (g guard) request(ctx context.Context, keptBy map[string]string) (request, error) {
	admitted, err := admission.RequestFromContext(ctx)
	if err != nil {
		return request{}, err
	}
	return request{guard: g, namespace: admitted.Namespace, user: admitted.UserInfo, keptBy: keptBy}, nil
}

// may asks the API server whether the sender may do this; an empty name means to every object of
// the resource.
func (r request) may(ctx context.Context, verb, group, resource, name string) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(r.user.Extra))
	for key, value := range r.user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: r.user.Username, UID: r.user.UID, Groups: r.user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Verb: verb, Group: group, Version: "*", Resource: resource, Name: name,
		},
	}}
	if err := patiently(ctx, func() error { return r.reviews.Create(ctx, review) }); err != nil {
		return false, fmt.Errorf("review access to %s: %w", resource, err)
	}
	return review.Status.Allowed, nil
}

func (r request) mayGetEverySecret(ctx context.Context) (bool, error) {
	return r.may(ctx, "get", "", "secrets", "")
}

// deniedSecrets are those of the named Secrets that the sender must not refer to.
func (r request) deniedSecrets(ctx context.Context, names sets.Set[string]) (sets.Set[string], error) {
	denied := sets.New[string]()
	if names.Len() > 1 {
		if all, err := r.mayGetEverySecret(ctx); err != nil || all {
			return denied, err
		}
	}
	for _, name := range sets.List(names) {
		allowed, err := r.keepsSecret(ctx, name)
		if err == nil && !allowed {
			allowed, err = r.may(ctx, "get", "", "secrets", name)
		}
		if err != nil {
			return nil, err
		}
		if !allowed {
			denied.Insert(name)
		}
	}
	return denied, nil
}

func (r request) byKeeper() bool { return r.keepers.Has(r.user.Username) }

func (r request) byFacade() bool { return r.facade != "" && r.facade == r.user.Username }

// keepsSecret reports whether the sender is Parley itself and the Secret one that it keeps for the
// object, or is about to.
func (r request) keepsSecret(ctx context.Context, name string) (bool, error) {
	if !r.byKeeper() {
		return false, nil
	}
	// The type is no part of the metadata, so here the whole Secret is read.
	secret := &corev1.Secret{}
	err := r.reader.Get(ctx, r.key(name), secret)
	switch {
	case apierrors.IsNotFound(err):
		return r.reserved(name), nil
	case err != nil:
		return false, err
	}
	if secret.Type != v1alpha1.SecretTypeUserKey {
		return false, nil
	}
	for label, value := range r.keptBy {
		if value != "" && secret.Labels[label] == value {
			return true, nil
		}
	}
	return false, nil
}

// reserved reports whether a name is one that only a Secret has which Parley keeps for the object.
// An object may be written before what it refers to; by these names nothing of somebody else's is
// caught that comes into being in between. A session never waits for what is kept for its settings.
func (r request) reserved(name string) bool {
	label := v1alpha1.LabelConversation
	if r.keptBy[label] == "" {
		label = v1alpha1.LabelUserSettings
	}
	return v1alpha1.IsManagedSecretName(name, label, r.keptBy[label])
}

// keepsConfigMap reports whether the sender is Parley itself and the ConfigMap one that it keeps
// for the object.
func (r request) keepsConfigMap(ctx context.Context, name string) (bool, error) {
	if !r.byKeeper() {
		return false, nil
	}
	configMap := metadataOf("ConfigMap")
	err := r.reader.Get(ctx, r.key(name), configMap)
	switch {
	case apierrors.IsNotFound(err):
		return v1alpha1.IsManagedConfigMapName(name, r.keptBy[v1alpha1.LabelConversation]), nil
	case err != nil:
		return false, err
	}
	conversation := r.keptBy[v1alpha1.LabelConversation]
	return conversation != "" && configMap.Labels[v1alpha1.LabelConversation] == conversation, nil
}

// secretExists reads metadata only, so that no value enters memory.
func (r request) secretExists(ctx context.Context, name string) (bool, error) {
	err := r.reader.Get(ctx, r.key(name), metadataOf("Secret"))
	return err == nil, client.IgnoreNotFound(err)
}

func (r request) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: r.namespace, Name: name}
}

func metadataOf(coreKind string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(coreKind))
	return object
}

// cannotCheck refuses a request about which no decision can be made. What failed is for the log,
// not for the sender.
func cannotCheck(ctx context.Context, err error) error {
	logf.FromContext(ctx).Error(err, "Cannot check the references of an object")
	return apierrors.NewInternalError(errors.New("the references of this object could not be checked, try again"))
}
