package onboarding

import (
	"context"
	"fmt"
	"net/mail"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/identity"
)

// +kubebuilder:rbac:groups=parley.dev,resources=usersettings,verbs=get;create
// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=parley.dev,resources=sessionclasses,verbs=list;watch

// problem is the error if one entry of the configuration cannot be applied. Its text is for the
// person who signs in; its cause is for the administrator.
type problem struct {
	text  string
	cause error
}

func (p *problem) Error() string { return p.text }

func (p *problem) Unwrap() error { return p.cause }

// maxEmail is the largest length of spec.email.
const maxEmail = 320

func build(person *identity.Person, prefix string, e *entry) *v1alpha1.UserSettings {
	settings := &v1alpha1.UserSettings{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: settingsName(person.Username, prefix, e.Group)},
		Spec: v1alpha1.UserSettingsSpec{
			Owner:            &v1alpha1.SettingsOwner{Username: person.Username, Group: ptr.To(e.Group)},
			SessionClassName: e.SessionClassName,
			InheritFrom:      e.InheritFrom,
		},
	}
	if address, err := mail.ParseAddress(person.Email); err == nil && address.Address == person.Email &&
		len(person.Email) <= maxEmail {
		settings.Spec.Email, settings.Spec.EmailVerified = &person.Email, ptr.To(true)
	}
	return settings
}

// ensure creates the UserSettings unless they exist. It never changes existing UserSettings.
func (o *Onboarder) ensure(ctx context.Context, wanted *v1alpha1.UserSettings, person *identity.Person) (created bool,
	err error) {
	for range 2 { // the settings may be created, or deleted, between two requests
		existing := &v1alpha1.UserSettings{}
		err := o.live.Get(ctx, client.ObjectKeyFromObject(wanted), existing)
		if err == nil {
			return false, checkExisting(existing, person)
		}
		if !apierrors.IsNotFound(err) {
			return false, &problem{"the UserSettings could not be read; sign in again later", err}
		}
		if err := o.checkReferences(ctx, wanted); err != nil {
			return false, err
		}
		if err = o.client.Create(ctx, wanted.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return err == nil, createProblem(err)
		}
	}
	return false, &problem{"the UserSettings are being replaced; sign in again later", nil}
}

func checkExisting(existing *v1alpha1.UserSettings, person *identity.Person) error {
	owner := existing.Spec.Owner
	switch {
	case owner == nil || owner.Username != person.Username,
		owner.Group != nil && !slices.Contains(person.Groups, *owner.Group):
		return &problem{fmt.Sprintf("the UserSettings %s exist and have another owner or group", existing.Name), nil}
	case existing.DeletionTimestamp != nil:
		return &problem{"the UserSettings are being deleted; sign in again later", nil}
	}
	return nil
}

// checkReferences refuses new UserSettings whose class or inherited settings do not exist.
// Otherwise, a wrong name in the configuration would create invalid UserSettings for everybody.
func (o *Onboarder) checkReferences(ctx context.Context, wanted *v1alpha1.UserSettings) error {
	check := func(reader client.Reader, field, namespace string, name *string, object client.Object) error {
		if name == nil {
			return nil
		}
		err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: *name}, object)
		switch {
		case apierrors.IsNotFound(err):
			return &problem{fmt.Sprintf("%s: %s does not exist", field, *name), nil}
		case err != nil:
			return &problem{field + " could not be checked; sign in again later", err}
		}
		return nil
	}
	if err := check(o.client, "sessionClassName", "", wanted.Spec.SessionClassName,
		&v1alpha1.SessionClass{}); err != nil {
		return err
	}
	return check(o.live, "inheritFrom", wanted.Namespace, wanted.Spec.InheritFrom, &v1alpha1.UserSettings{})
}

// createProblem describes a failed creation. It omits the cause of a refusal, which may name
// objects that the person must not see.
func createProblem(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return &problem{"the namespace does not exist", err}
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &problem{"the cluster refused the UserSettings", err}
	}
	return &problem{"the UserSettings could not be created; sign in again later", err}
}
