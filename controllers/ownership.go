package controllers

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// owned says whether the owner controls the object. The UID decides, not the name: an owner that was
// deleted and created again is another one.
func owned(object, owner metav1.Object) bool { return metav1.IsControlledBy(object, owner) }

// owningConversation is the reference to the Conversation that controls an object; nil if none does.
func owningConversation(o client.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != "Conversation" ||
		!strings.HasPrefix(owner.APIVersion, v1alpha1.SchemeGroupVersion.Group+"/") {
		return nil
	}
	return owner
}

// notOurs is the error for an object that has the name of one that we need, and is not ours.
func notOurs(kind string, object client.Object, c *v1alpha1.Conversation) error {
	controller := metav1.GetControllerOf(object)
	leaving := object.GetDeletionTimestamp() != nil || controller != nil && controller.Kind == "Conversation" &&
		controller.Name == c.Name
	if leaving {
		return &leavingError{kind: kind, name: object.GetName()}
	}
	return &foreignError{kind: kind, name: object.GetName()}
}

// leavingError says that an object of an earlier Conversation of this name has yet to go.
type leavingError struct{ kind, name string }

func (e *leavingError) Error() string {
	return fmt.Sprintf("%s %s of an earlier Conversation of this name is going away", e.kind, e.name)
}

// foreignError says that a foreign object has the name of one that we need.
type foreignError struct{ kind, name string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %s exists and does not belong to this object: remove it or choose another name", e.kind, e.name)
}

// blockerOf is what holds up a start, for an error that does not go away by retrying at once; nil for
// any other.
func blockerOf(err error) *lifecycle.Blocker {
	if foreign := (*foreignError)(nil); errors.As(err, &foreign) {
		return &lifecycle.Blocker{Reason: v1alpha1.ReasonForeignObject, Message: foreign.Error()}
	}
	if leaving := (*leavingError)(nil); errors.As(err, &leaving) {
		return &lifecycle.Blocker{Reason: v1alpha1.ReasonScheduling, Message: leaving.Error()}
	}
	if isRefusal(err) {
		return &lifecycle.Blocker{Reason: v1alpha1.ReasonRejected, Message: stableMessage(err)}
	}
	return nil
}

// stableMessage is that of an error without what changes from one try to the next: a quota says how
// much of it is used. A status that changed each time would be written, and reconciled, without end.
func stableMessage(err error) string {
	message, _, _ := strings.Cut(err.Error(), ", requested: ")
	return message
}
