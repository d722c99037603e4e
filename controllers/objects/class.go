// Package objects builds the Kubernetes objects of a session. It is pure. Builders take values and
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

// Class is a SessionClass. The operator's defaults apply to the fields that the class leaves empty.
type Class struct {
	Name string
	Spec v1alpha1.SessionClassSpec
}

// These are the operator's defaults for fields that the class leaves empty.
const (
	defaultIdleTimeout   = 30 * time.Minute
	defaultStartDeadline = 10 * time.Minute
	defaultMaxDuration   = 24 * time.Hour
	defaultRestarts      = 5
)

// These are the defaults for the space that a session uses on the disk of its node. defaultScratch
// limits each scratch volume. defaultDisk limits the rest: logs, and files in the writable layer of
// the image, such as /tmp. defaultDiskRequest is the request for all this space.
var (
	defaultScratch     = resource.MustParse("10Gi")
	defaultDisk        = resource.MustParse("10Gi")
	defaultDiskRequest = resource.MustParse("512Mi")
)

// ClassName returns the class of a session: its own class, or the class in its settings, or the
// default class.
func ClassName(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec) string {
	return *cmp.Or(c.Spec.SessionClassName, settings.SessionClassName, ptr.To(v1alpha1.DefaultSessionClass))
}

// lifetime returns the default value of a lifetime: the value in the class or, if the class has
// none, the value of the operator. The result does not exceed the maximum of the class.
func lifetime(class *v1alpha1.Lifetime, fallback time.Duration) time.Duration {
	if class == nil {
		return fallback
	}
	value := fallback
	if class.Default != nil {
		value = class.Default.Duration
	}
	longest := ptr.Deref(class.Max, metav1.Duration{}).Duration
	if longest != 0 && (value == 0 || value > longest) { // 0 means no limit
		return longest
	}
	return value
}

// Bounds returns the time limits and the restart limit of the sessions of this class.
func (c Class) Bounds() lifecycle.Bounds {
	class := ptr.Deref(c.Spec.Lifetimes, v1alpha1.SessionLifetimes{})
	b := lifecycle.Bounds{
		Limits:        c.Spec.Limits(),
		IdleTimeout:   lifetime(class.IdleTimeout, defaultIdleTimeout),
		StartDeadline: lifetime(class.StartDeadline, defaultStartDeadline),
		MaxDuration:   lifetime(class.MaxDuration, defaultMaxDuration),
		MaxRestarts:   ptr.Deref(c.Spec.MaxRestarts, defaultRestarts),
	}
	if class.TTLAfterStopped != nil && class.TTLAfterStopped.Default != nil {
		b.TTL = &class.TTLAfterStopped.Default.Duration
	}
	if c.Spec.Workspace != nil && c.Spec.Workspace.TTL != nil {
		b.WorkspaceTTL = &c.Spec.Workspace.TTL.Duration
	}
	if class.EndedPodTTL != nil {
		b.EndedPodTTL = &class.EndedPodTTL.Duration
	}
	return b
}

// WithDefaults returns a copy of the settings in which the class's values fill the empty fields.
func (c Class) WithDefaults(settings *v1alpha1.UserSettingsSpec) *v1alpha1.UserSettingsSpec {
	settings = settings.DeepCopy()
	settings.MaxIterations = cmp.Or(settings.MaxIterations, c.Spec.MaxIterations)
	settings.MaxBudgetPerTask = cmp.Or(settings.MaxBudgetPerTask, c.Spec.MaxBudgetPerTask)
	settings.ExposeGitTokenToAgent = cmp.Or(settings.ExposeGitTokenToAgent, c.Spec.ExposeGitTokenToAgent)
	return settings
}

// NotAllowed returns a blocker for the first value that the class or the user's confirmation mode
// does not allow; nil if the session may start. The webhook's checks do not suffice, because the
// class may change later. The Conversation's workspace and lifetimes are checked only until the
// session has a pod. From then on, the class's limits in the status apply, until a user starts the
// session again.
func (c Class) NotAllowed(conversation *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec,
	agent *session.Agent) *lifecycle.Blocker {
	errs := c.Spec.ConversationErrors(c.Name, &conversation.Spec)
	if conversation.Status.CurrentClass() == nil && len(errs) > 0 {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "%s: %s", errs[0].Field, errs[0].Detail)
	}
	effective := *settings
	if agent != nil {
		effective.Agent = &agent.Name // the default agent if the settings name none
	}
	if errs := c.Spec.SettingsErrors(c.Name, &effective); len(errs) > 0 {
		owner := "UserSettings "
		if errs[0].Field == "spec.agent" && conversation.Spec.Agent != nil {
			owner = ""
		}
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "%s%s: %s", owner, errs[0].Field, errs[0].Detail)
	}
	if agent == nil {
		return nil
	}
	if agent.Image != "" && !c.Spec.AllowsImage(agent.Image) {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "the image of agent %s: SessionClass %s allows only "+
			"images like %s", agent.Name, c.Name, strings.Join(c.Spec.Images.Allowed, ", "))
	}
	if len(agent.Command) > 0 && !agent.Confirms && ptr.Deref(settings.ConfirmationMode, false) {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "UserSettings spec.confirmationMode: agent %s does not ask "+
			"for confirmation; choose an agent that does, or turn confirmation mode off", agent.Name)
	}
	return nil
}

// ModelNotAllowed returns a blocker if the user's settings do not allow the model of the
// Conversation. The settings may have changed since admission.
func ModelNotAllowed(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec) *lifecycle.Blocker {
	if problem := c.Spec.ModelProblem(settings); problem != "" {
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "spec.llmModel: %s", problem)
	}
	return nil
}

// Workspace returns the volume of a session; nil for scratch space.
func (c Class) Workspace(conversation *v1alpha1.Conversation, kind v1alpha1.WorkspaceKind) *v1alpha1.Workspace {
	switch {
	case kind == v1alpha1.WorkspaceOwn:
		return conversation.Spec.Workspace
	case kind == v1alpha1.WorkspaceClass && c.Spec.Workspace != nil:
		return &c.Spec.Workspace.Workspace
	}
	return nil
}

func (c Class) scratchSize() resource.Quantity {
	return ptr.Deref(ptr.Deref(c.Spec.Resources, v1alpha1.SessionResources{}).ScratchSize, defaultScratch)
}

// pullPolicy returns the pull policy of an image. An image that a user named is always pulled,
// unless its name contains a digest.
func (c Class) pullPolicy(userNamed bool, image string) corev1.PullPolicy {
	if userNamed && !strings.Contains(image, "@sha256:") {
		return corev1.PullAlways
	}
	return ptr.Deref(ptr.Deref(c.Spec.Images, v1alpha1.SessionImages{}).PullPolicy, corev1.PullIfNotPresent)
}
