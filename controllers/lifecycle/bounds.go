package lifecycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Bounds are the limits of a session, from its spec or its class.
type Bounds struct {
	IdleTimeout, StartDeadline, MaxDuration time.Duration // zero means none
	// TTL is how long the Conversation stays after its session ended. WorkspaceTTL is how long the
	// class's volume stays after the session stopped. EndedPodTTL is how long the pod stays after
	// the session ended. nil means forever.
	TTL, WorkspaceTTL, EndedPodTTL *time.Duration
	MaxRestarts                    int32
	// Limits are the largest lifetimes that the class allows. nil means that the class sets no
	// limits.
	Limits *v1alpha1.LifetimeLimits
}

// For returns the bounds of a session. A value of its spec replaces the value of its class, but
// cannot exceed the limit of the class. Admission usually refuses a spec that exceeds a limit, but
// it may check the limits of another class: if the settings that name the class were deleted,
// admission uses the default class.
func (b Bounds) For(spec *v1alpha1.ConversationSpec) Bounds {
	limits := ptr.Deref(b.Limits, v1alpha1.LifetimeLimits{})
	for _, lifetime := range []struct {
		requested, limit *metav1.Duration
		bound            *time.Duration
	}{
		{spec.IdleTimeout, limits.IdleTimeout, &b.IdleTimeout},
		{spec.StartDeadline, limits.StartDeadline, &b.StartDeadline},
		{spec.MaxDuration, limits.MaxDuration, &b.MaxDuration},
	} {
		if lifetime.requested == nil {
			continue
		}
		*lifetime.bound = lifetime.requested.Duration
		if limit := lifetime.limit; limit != nil && (*lifetime.bound == 0 || *lifetime.bound > limit.Duration) {
			*lifetime.bound = limit.Duration
		}
	}
	if spec.TTLAfterStopped != nil {
		b.TTL = &spec.TTLAfterStopped.Duration
		if limits.TTLAfterStopped != nil {
			b.TTL = ptr.To(min(*b.TTL, limits.TTLAfterStopped.Duration))
		}
	}
	return b
}

// StartedClass returns the class that was recorded when the session got its pod; nil before that.
// For a stopped session, it returns the class of the last start.
func StartedClass(s v1alpha1.ConversationStatus) *v1alpha1.StartedClass {
	if s.State == v1alpha1.StateStopped {
		return s.SessionClass
	}
	return s.CurrentClass()
}

// RecordedBounds returns the bounds that a class had when a session started. They lack the idle
// timeout, which is in the session document.
func RecordedBounds(c *v1alpha1.StartedClass) Bounds {
	optional := func(d *metav1.Duration) *time.Duration {
		if d == nil {
			return nil
		}
		return &d.Duration
	}
	b := Bounds{TTL: optional(c.TTLAfterStopped), WorkspaceTTL: optional(c.WorkspaceTTL),
		EndedPodTTL: optional(c.EndedPodTTL), MaxRestarts: c.MaxRestarts, Limits: c.Max}
	if c.StartDeadline != nil {
		b.StartDeadline = c.StartDeadline.Duration
	}
	if c.MaxDuration != nil {
		b.MaxDuration = c.MaxDuration.Duration
	}
	return b
}

// recordClass records the class of a session in the first status that is written after the pod was
// created. Until then, the pod's label names the class.
func recordClass(status *v1alpha1.ConversationStatus, o Observation) {
	before := o.Conversation.Status
	if o.Pod == nil || o.ClassName == "" || before.CurrentClass() != nil {
		return
	}
	optional := func(d *time.Duration) *metav1.Duration {
		if d == nil {
			return nil
		}
		return &metav1.Duration{Duration: *d}
	}
	b := o.ClassBounds
	status.SessionClass = &v1alpha1.StartedClass{
		Name: o.ClassName, FirstAttempt: FirstAttempt(before), MaxRestarts: b.MaxRestarts,
		TTLAfterStopped: optional(b.TTL), WorkspaceTTL: optional(b.WorkspaceTTL), EndedPodTTL: optional(b.EndedPodTTL),
		// The Secret is not signed if Parley 0.1.0 created the pod. Such a pod lacks LabelProtocol.
		Max: b.Limits, SignedSecret: o.Pod.Labels[v1alpha1.LabelProtocol] != "",
	}
	if b.StartDeadline != 0 {
		status.SessionClass.StartDeadline = optional(&b.StartDeadline)
	}
	if b.MaxDuration != 0 {
		status.SessionClass.MaxDuration = optional(&b.MaxDuration)
	}
}
