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

// guard checks the rights of a request's sender. A session must not give its user access to an
// object that the user is not allowed to read.
type guard struct {
	cache client.Reader
	// reviews creates SubjectAccessReviews.
	reviews client.Writer
	// reader reads from the API server, because a stale object in the cache must not decide about
	// access.
	reader client.Reader
	// facade and manager are the user names of Parley's ServiceAccounts; empty if unknown. These
	// two accounts may refer to managed objects that they are not allowed to read.
	facade, manager string
}

func newGuard(c client.Client, live client.Reader, options Options) guard {
	return guard{
		cache: retryingReader{c}, reviews: c, reader: retryingReader{live},
		facade: options.FacadeUser, manager: options.ManagerUser,
	}
}

type request struct {
	guard
	namespace string
	user      authenticationv1.UserInfo
	// managedFor holds labels. A Secret with one of them is managed for the object in the request.
	managedFor map[string]string
}

func (g guard) request(ctx context.Context, managedFor map[string]string) (request, error) {
	admitted, err := admission.RequestFromContext(ctx)
	if err != nil {
		return request{}, err
	}
	return request{guard: g, namespace: admitted.Namespace, user: admitted.UserInfo, managedFor: managedFor}, nil
}

// may() reports whether the sender has a right; an empty name means all objects of the
// resource.
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
	if err := retryTransient(ctx, func() error { return r.reviews.Create(ctx, review) }); err != nil {
		return false, fmt.Errorf("review access to %s: %w", resource, err)
	}
	return review.Status.Allowed, nil
}

func (r request) mayGetEverySecret(ctx context.Context) (bool, error) {
	return r.may(ctx, "get", "", "secrets", "")
}

func (r request) deniedSecrets(ctx context.Context, names sets.Set[string]) (sets.Set[string], error) {
	denied := sets.New[string]()
	if names.Len() > 1 {
		if all, err := r.mayGetEverySecret(ctx); err != nil || all {
			return denied, err
		}
	}
	for _, name := range sets.List(names) {
		allowed, err := r.managesSecret(ctx, name)
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

func (r request) fromParley() bool { return r.fromFacade() || r.fromManager() }

func (r request) fromFacade() bool { return r.facade != "" && r.user.Username == r.facade }

func (r request) fromManager() bool { return r.manager != "" && r.user.Username == r.manager }

// managesSecret reports whether the sender is Parley, and Parley manages the Secret for the object
// in the request. The Secret may not exist yet.
func (r request) managesSecret(ctx context.Context, name string) (bool, error) {
	if !r.fromParley() {
		return false, nil
	}
	// The metadata do not contain the type of a Secret, so read the whole Secret.
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
	for label, value := range r.managedFor {
		if value != "" && secret.Labels[label] == value {
			return true, nil
		}
	}
	return false, nil
}

// reserved reports whether this name is reserved for a managed Secret of the object. The facade may
// refer to such a Secret before it creates the Secret.
func (r request) reserved(name string) bool {
	label := v1alpha1.LabelConversation
	if r.managedFor[label] == "" {
		label = v1alpha1.LabelUserSettings
	}
	return v1alpha1.IsManagedSecretName(name, label, r.managedFor[label])
}

// managesConfigMap reports whether the sender is Parley and the ConfigMap belongs to the
// Conversation in the request.
func (r request) managesConfigMap(ctx context.Context, name string) (bool, error) {
	if !r.fromParley() {
		return false, nil
	}
	configMap, conversation := metadataOf("ConfigMap"), r.managedFor[v1alpha1.LabelConversation]
	err := r.reader.Get(ctx, r.key(name), configMap)
	if apierrors.IsNotFound(err) {
		return v1alpha1.IsManagedConfigMapName(name, conversation), nil
	}
	return err == nil && conversation != "" && configMap.Labels[v1alpha1.LabelConversation] == conversation, err
}

// secretExists reads only metadata, so that no value enters memory.
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

// cannotCheck refuses a request that could not be checked. It logs the cause and hides it from the
// sender.
func cannotCheck(ctx context.Context, err error) error {
	logf.FromContext(ctx).Error(err, "Cannot check the references of an object")
	return apierrors.NewInternalError(errors.New("the references of this object could not be checked; retry later"))
}
