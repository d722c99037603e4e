package controllers

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=parley.dev,resources=sessionclasses,verbs=list;watch
// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=storage.k8s.io,resources=storageclasses,verbs=list;watch

// class is a SessionClass, with what the operator has where it says nothing.
type class struct {
	name string
	spec v1alpha1.SessionClassSpec
}

// What a session gets where its class says nothing.
const (
	defaultIdleTimeout   = 30 * time.Minute
	defaultStartDeadline = 10 * time.Minute
	defaultMaxDuration   = 24 * time.Hour
	defaultRestarts      = 5
)

var defaultScratch = resource.MustParse("10Gi")

// className is the class of a session: its own, or else that of its settings.
func className(c *v1alpha1.Conversation, settings *v1alpha1.UserSettings) string {
	if c.Spec.SessionClassName != nil {
		return *c.Spec.SessionClassName
	}
	if settings != nil && settings.Spec.SessionClassName != nil {
		return *settings.Spec.SessionClassName
	}
	return v1alpha1.DefaultSessionClass
}

// classNamed finds a class. Without the one called default the operator's own values hold; any
// other that is missing is a problem.
func (r *conversationReconciler) classNamed(ctx context.Context, name string) (class, *problem, error) {
	found := &v1alpha1.SessionClass{}
	err := r.client.Get(ctx, client.ObjectKey{Name: name}, found)
	switch {
	case err == nil:
		return class{name, found.Spec}, nil, nil
	case !apierrors.IsNotFound(err):
		return class{}, nil, fmt.Errorf("read SessionClass: %w", err)
	case name == v1alpha1.DefaultSessionClass:
		return class{name: name}, nil, nil
	}
	return class{name: name}, &problem{v1alpha1.ReasonClassNotFound, fmt.Sprintf("SessionClass %s does not exist", name)},
		nil
}

// lifetime is how long something takes: as asked for, or as the class says, or as the operator has
// it, and then no longer than the class allows. What is asked for is held against that where it is
// asked, and at the start.
func lifetime(asked *metav1.Duration, of *v1alpha1.Lifetime, otherwise time.Duration) time.Duration {
	switch {
	case asked != nil:
		return asked.Duration
	case of != nil && of.Default != nil:
		return of.Default.Duration
	case of != nil && of.Max != nil && of.Max.Duration != 0:
		return min(otherwise, of.Max.Duration)
	}
	return otherwise
}

// lifetimes of the class, none of them nil.
func (c class) lifetimes() v1alpha1.SessionLifetimes {
	return ptr.Deref(c.spec.Lifetimes, v1alpha1.SessionLifetimes{})
}

// egressAllow are ranges that its sessions may reach although they are private.
func (c class) egressAllow() []string {
	return ptr.Deref(c.spec.Network, v1alpha1.SessionNetwork{}).EgressAllow
}

// bounds of the life of a session of this class.
func (c class) bounds(spec *v1alpha1.ConversationSpec) bounds {
	of := c.lifetimes()
	b := bounds{
		idleTimeout:   lifetime(spec.IdleTimeout, of.IdleTimeout, defaultIdleTimeout),
		startDeadline: lifetime(spec.StartDeadline, of.StartDeadline, defaultStartDeadline),
		maxDuration:   lifetime(spec.MaxDuration, of.MaxDuration, defaultMaxDuration),
		restarts:      ptr.Deref(c.spec.MaxRestarts, defaultRestarts),
	}
	if spec.TTLAfterStopped != nil || of.TTLAfterStopped != nil && of.TTLAfterStopped.Default != nil {
		b.ttl = ptr.To(lifetime(spec.TTLAfterStopped, of.TTLAfterStopped, 0))
	}
	if c.spec.Workspace != nil && c.spec.Workspace.TTL != nil {
		b.workspaceTTL = &c.spec.Workspace.TTL.Duration
	}
	return b
}

// bounded are settings with the class's bounds for what they leave out, which would else be without
// any.
func (c class) bounded(settings *v1alpha1.UserSettingsSpec) *v1alpha1.UserSettingsSpec {
	settings = settings.DeepCopy()
	settings.MaxIterations = cmp.Or(settings.MaxIterations, c.spec.MaxIterations)
	settings.MaxBudgetPerTask = cmp.Or(settings.MaxBudgetPerTask, c.spec.MaxBudgetPerTask)
	return settings
}

// notAllowed is what a session asks for that its class does not allow; nil if it may start. It
// names the field. What the webhook said when it was asked for may have changed since.
func (c class) notAllowed(conversation *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec,
	agent *session.Agent) *problem {
	if errs := c.spec.ConversationErrors(c.name, &conversation.Spec); len(errs) > 0 {
		return &problem{v1alpha1.ReasonNotAllowed, errs[0].Field + ": " + errs[0].Detail}
	}
	effective := *settings
	if agent != nil {
		effective.Agent = &agent.Name // also where it is the one of settings that name none
	}
	if errs := c.spec.SettingsErrors(c.name, &effective); len(errs) > 0 {
		return &problem{v1alpha1.ReasonNotAllowed, "UserSettings " + errs[0].Field + ": " + errs[0].Detail}
	}
	if agent != nil && agent.Image != "" && !c.spec.AllowsImage(agent.Image) {
		return &problem{v1alpha1.ReasonNotAllowed, fmt.Sprintf("the image of agent %s: SessionClass %s allows only images "+
			"like %s", agent.Name, c.name, strings.Join(c.spec.Images.Allowed, ", "))}
	}
	return nil
}

// workspaceOf decides where the files of a session are to be, once: what it got at its first start
// it keeps.
func (r *conversationReconciler) workspaceOf(ctx context.Context, c *v1alpha1.Conversation,
	class class) (v1alpha1.WorkspaceKind, error) {
	switch {
	case c.Spec.Workspace != nil:
		return v1alpha1.WorkspaceOwn, nil
	case c.Status.Workspace != "":
		return c.Status.Workspace, nil
	case class.spec.Workspace == nil:
		return v1alpha1.WorkspaceScratch, nil
	case class.spec.Workspace.StorageClassName != nil:
		return v1alpha1.WorkspaceClass, nil
	}
	var classes storagev1.StorageClassList
	if err := r.client.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list StorageClasses: %w", err)
	}
	for i := range classes.Items {
		if classes.Items[i].Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return v1alpha1.WorkspaceClass, nil
		}
	}
	return v1alpha1.WorkspaceScratch, nil
}

// workspace is the volume of a session; nil for scratch space.
func (c class) workspace(conversation *v1alpha1.Conversation, kind v1alpha1.WorkspaceKind) *v1alpha1.Workspace {
	switch {
	case kind == v1alpha1.WorkspaceOwn:
		return conversation.Spec.Workspace
	case kind == v1alpha1.WorkspaceClass && c.spec.Workspace != nil:
		return &c.spec.Workspace.Workspace
	}
	return nil
}

// scratchSize bounds each scratch volume of a session.
func (c class) scratchSize() resource.Quantity {
	if of := c.spec.Resources; of != nil && of.ScratchSize != nil {
		return *of.ScratchSize
	}
	return defaultScratch
}

// pullPolicy of an image: those that users name are pulled always, unless they name a digest.
func (c class) pullPolicy(userNamed bool, image string) corev1.PullPolicy {
	if userNamed && !strings.Contains(image, "@sha256:") {
		return corev1.PullAlways
	}
	if c.spec.Images == nil {
		return corev1.PullIfNotPresent
	}
	return ptr.Deref(c.spec.Images.PullPolicy, corev1.PullIfNotPresent)
}
