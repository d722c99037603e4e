// Package objects builds the Kubernetes objects of a session. It is pure: builders take values and
// return objects.
package objects

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// Class is a SessionClass. The operator's defaults apply where it says nothing.
type Class struct {
	Name string
	Spec v1alpha1.SessionClassSpec
}

// Defaults where a class says nothing.
const (
	defaultIdleTimeout   = 30 * time.Minute
	defaultStartDeadline = 10 * time.Minute
	defaultMaxDuration   = 24 * time.Hour
	defaultRestarts      = 5
)

var defaultScratch = resource.MustParse("10Gi")

// ClassName is the class of a session: its own, or else that of its settings.
func ClassName(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec) string {
	return *cmp.Or(c.Spec.SessionClassName, settings.SessionClassName, ptr.To(v1alpha1.DefaultSessionClass))
}

// lifetime is what is asked for, or else the class's default, or else the operator's within the
// class's bound. Admission and the start check what is asked for against that bound.
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

// Bounds of the life of a session of this class.
func (c Class) Bounds(spec *v1alpha1.ConversationSpec) lifecycle.Bounds {
	of := ptr.Deref(c.Spec.Lifetimes, v1alpha1.SessionLifetimes{})
	b := lifecycle.Bounds{
		IdleTimeout:   lifetime(spec.IdleTimeout, of.IdleTimeout, defaultIdleTimeout),
		StartDeadline: lifetime(spec.StartDeadline, of.StartDeadline, defaultStartDeadline),
		MaxDuration:   lifetime(spec.MaxDuration, of.MaxDuration, defaultMaxDuration),
		MaxRestarts:   ptr.Deref(c.Spec.MaxRestarts, defaultRestarts),
	}
	if spec.TTLAfterStopped != nil || of.TTLAfterStopped != nil && of.TTLAfterStopped.Default != nil {
		b.TTL = ptr.To(lifetime(spec.TTLAfterStopped, of.TTLAfterStopped, 0))
	}
	if c.Spec.Workspace != nil && c.Spec.Workspace.TTL != nil {
		b.WorkspaceTTL = &c.Spec.Workspace.TTL.Duration
	}
	if of.EndedPodTTL != nil {
		b.EndedPodTTL = &of.EndedPodTTL.Duration
	}
	return b
}

// WithDefaults are settings with the class's bounds where they have none.
func (c Class) WithDefaults(settings *v1alpha1.UserSettingsSpec) *v1alpha1.UserSettingsSpec {
	settings = settings.DeepCopy()
	settings.MaxIterations = cmp.Or(settings.MaxIterations, c.Spec.MaxIterations)
	settings.MaxBudgetPerTask = cmp.Or(settings.MaxBudgetPerTask, c.Spec.MaxBudgetPerTask)
	return settings
}

// NotAllowed is what a session asks for that its class, or its user's confirmation mode, does not
// allow; nil if it may start. It names the field. The class may have changed since admission.
func (c Class) NotAllowed(conversation *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec,
	agent *session.Agent) *lifecycle.Blocker {
	if errs := c.Spec.ConversationErrors(c.Name, &conversation.Spec); len(errs) > 0 {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "%s: %s", errs[0].Field, errs[0].Detail)
	}
	effective := *settings
	if agent != nil {
		effective.Agent = &agent.Name // also where the settings name none
	}
	if errs := c.Spec.SettingsErrors(c.Name, &effective); len(errs) > 0 {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "UserSettings %s: %s", errs[0].Field, errs[0].Detail)
	}
	if agent == nil {
		return nil
	}
	if agent.Image != "" && !c.Spec.AllowsImage(agent.Image) {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "the image of agent %s: SessionClass %s allows only "+
			"images like %s", agent.Name, c.Name, strings.Join(c.Spec.Images.Allowed, ", "))
	}
	if len(agent.Command) > 0 && !agent.Confirms && ptr.Deref(settings.ConfirmationMode, false) {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "UserSettings spec.confirmationMode: the agent %s does not "+
			"ask before it acts; choose one that does, or turn it off", agent.Name)
	}
	return nil
}

// Workspace is the volume of a session; nil for scratch space.
func (c Class) Workspace(conversation *v1alpha1.Conversation, kind v1alpha1.WorkspaceKind) *v1alpha1.Workspace {
	switch {
	case kind == v1alpha1.WorkspaceOwn:
		return conversation.Spec.Workspace
	case kind == v1alpha1.WorkspaceClass && c.Spec.Workspace != nil:
		return &c.Spec.Workspace.Workspace
	}
	return nil
}

// scratchSize bounds each scratch volume of a session.
func (c Class) scratchSize() resource.Quantity {
	return ptr.Deref(ptr.Deref(c.Spec.Resources, v1alpha1.SessionResources{}).ScratchSize, defaultScratch)
}

// pullPolicy of an image: those that users name are always pulled, unless they name a digest.
func (c Class) pullPolicy(userNamed bool, image string) corev1.PullPolicy {
	if userNamed && !strings.Contains(image, "@sha256:") {
		return corev1.PullAlways
	}
	return ptr.Deref(ptr.Deref(c.Spec.Images, v1alpha1.SessionImages{}).PullPolicy, corev1.PullIfNotPresent)
}
