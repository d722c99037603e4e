package controllers

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// owned reports whether the owner controls the object. It compares UIDs, since an owner may have
// been recreated under the same name.
func owned(object, owner metav1.Object) bool { return metav1.IsControlledBy(object, owner) }

// owningConversation returns the reference to the Conversation that controls an object, or nil.
func owningConversation(o client.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != "Conversation" ||
		!strings.HasPrefix(owner.APIVersion, v1alpha1.SchemeGroupVersion.Group+"/") {
		return nil
	}
	return owner
}

// ownershipError returns the error for an unusable object whose name Parley needs. The error is a
// terminatingError if the object is being deleted or belongs to an earlier Conversation with this
// name. Otherwise, it is a foreignError.
func ownershipError(kind string, object client.Object, c *v1alpha1.Conversation) error {
	controller := metav1.GetControllerOf(object)
	leaving := object.GetDeletionTimestamp() != nil || controller != nil && controller.Kind == "Conversation" &&
		controller.Name == c.Name
	if leaving {
		return &terminatingError{kind: kind, name: object.GetName()}
	}
	return &foreignError{kind: kind, name: object.GetName()}
}

// checkSecret reports whether the existing Secret of a session is trusted: the manager signed it
// after a user last started the session. A Secret from before that start is not trusted. A Secret
// of an old version of Parley, which did not sign Secrets, is not trusted either. For a foreign
// Secret, checkSecret returns an error.
func checkSecret(secret *corev1.Secret, c *v1alpha1.Conversation, keys signingKeys) (trusted bool, err error) {
	attempt, started := lifecycle.LabelledAttempt(secret.Labels), c.Status.CurrentClass()
	switch {
	case !owned(secret, c) || secret.DeletionTimestamp != nil:
		return false, ownershipError("Secret", secret, c)
	case !objects.Authentic(secret, c.UID, keys.snapshots, keys.previousSnapshots):
		mustBeSigned := started != nil && started.SignedSecret
		if len(keys.snapshots) > 0 && (mustBeSigned || objects.Signed(secret)) {
			return false, &foreignError{kind: "Secret", name: secret.Name, forged: true}
		}
		return false, nil
	case attempt > lifecycle.Attempt(c.Status):
		return false, errStale
	}
	return attempt >= lifecycle.FirstAttempt(c.Status), nil
}

// terminatingError says that an object of an earlier attempt, or of a deleted Conversation with
// this name, still exists.
type terminatingError struct {
	kind, name string
	// attempt is set if the object belongs to an earlier attempt.
	attempt bool
}

func (e *terminatingError) Error() string {
	if e.attempt {
		return fmt.Sprintf("%s %s of an earlier attempt is still being deleted", e.kind, e.name)
	}
	return fmt.Sprintf("%s %s of an earlier Conversation with this name is still being deleted", e.kind, e.name)
}

// foreignError says that a foreign object has a name that Parley needs.
type foreignError struct {
	kind, name string
	// forged is set if the object names the Conversation as its owner, but the manager did not create
	// the object.
	forged bool
}

func (e *foreignError) Error() string {
	if e.forged {
		return fmt.Sprintf("%s %s was not created by Parley, or was signed with an earlier key: remove it",
			e.kind, e.name)
	}
	return fmt.Sprintf("%s %s exists and has another owner: remove it, or choose another name", e.kind, e.name)
}

// blockerOf returns the blocker for an error that an immediate retry does not fix; otherwise nil.
func blockerOf(err error) *lifecycle.Blocker {
	if foreign := (*foreignError)(nil); errors.As(err, &foreign) {
		return &lifecycle.Blocker{Reason: v1alpha1.ReasonForeignObject, Message: foreign.Error()}
	}
	if leaving := (*terminatingError)(nil); errors.As(err, &leaving) {
		return &lifecycle.Blocker{Reason: v1alpha1.ReasonScheduling, Message: leaving.Error()}
	}
	if isRefusal(err) {
		return &lifecycle.Blocker{Reason: v1alpha1.ReasonRejected, Message: stableMessage(err)}
	}
	return nil
}

// stableMessage returns an error's message without the part that changes with each try: the current
// usage of a quota. A changing status would be written and reconciled endlessly.
func stableMessage(err error) string {
	message, _, _ := strings.Cut(err.Error(), ", requested: ")
	return message
}
