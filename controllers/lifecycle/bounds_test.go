package lifecycle

import (
	"cmp"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestTheStatusRecordsTheClassWithItsLimits(t *testing.T) {
	days := func(n int) *time.Duration { return ptrTo(time.Duration(n) * 24 * time.Hour) }
	for name, bounds := range map[string]Bounds{
		"every limit": {StartDeadline: time.Minute, MaxDuration: time.Hour, TTL: days(1), WorkspaceTTL: days(2),
			EndedPodTTL: days(3), MaxRestarts: 4},
		"no limits":         {},
		"deletion at once":  {TTL: days(0), WorkspaceTTL: days(0), EndedPodTTL: days(0)},
		"only some of them": {MaxDuration: time.Hour, WorkspaceTTL: days(2), MaxRestarts: 5},
		"largest lifetimes": {Limits: &v1alpha1.LifetimeLimits{MaxDuration: &metav1.Duration{Duration: time.Hour}}},
	} {
		c := makeConversation("ns", "c")
		o := Observation{Conversation: c.Conversation, Bounds: bounds.For(&c.Spec), SettingsExist: true,
			Pod: podOf(c).Ready().Pod, ClassName: "small", ClassBounds: bounds, Now: at(1)}
		status := NewStatus(o, Judge(o))
		text, err := json.Marshal(status.SessionClass)
		if err != nil {
			t.Fatal(err)
		}
		read := &v1alpha1.StartedClass{}
		if err := json.Unmarshal(text, read); err != nil {
			t.Fatal(err)
		}
		if got := RecordedBounds(read); read.Name != "small" || !reflect.DeepEqual(got, bounds) {
			t.Errorf("%s: recorded %s", name, text)
		}
	}
}

func TestTheRecordedClassChangesOnlyAtAStart(t *testing.T) {
	c := makeConversation("ns", "c")
	observe := func(pod *aPod, class string) {
		o := Observation{Conversation: c.Conversation, Bounds: boundsOf(&c.Spec), SettingsExist: true, ClassName: class,
			Now: at(1)}
		if pod != nil {
			o.Pod = pod.Pod
		}
		c.Status = NewStatus(o, Judge(o))
	}
	expect := func(step, recorded, applies string) {
		t.Helper()
		name := func(r *v1alpha1.StartedClass) string {
			if r == nil {
				return ""
			}
			return r.Name
		}
		if got := name(c.Status.SessionClass); got != recorded {
			t.Errorf("%s: the class %q is recorded, want %q", step, got, recorded)
		}
		if got := name(StartedClass(c.Status)); got != applies {
			t.Errorf("%s: the class %q applies, want %q", step, got, applies)
		}
	}
	observe(nil, "first")
	expect("without a pod", "", "")
	observe(ptrTo(podOf(c).Ready()), "first")
	expect("running", "first", "first")
	observe(ptrTo(podOf(c).Ready().Failed("Evicted")), "other")
	expect("lost", "first", "first")
	observe(ptrTo(podOf(c).Ready()), "other")
	expect("replaced", "first", "first")
	c.Spec.Suspend = true
	observe(ptrTo(podOf(c).Ready()), "other")
	observe(nil, "other")
	expect("suspended", "first", "first")
	c.Spec.Suspend = false
	observe(nil, "second")
	expect("resumed", "first", "")
	c.Status.State, c.Status.Reason = v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing
	expect("stopped without its settings", "first", "first")
	c.Status.State, c.Status.Reason = v1alpha1.StateStarting, v1alpha1.ReasonScheduling
	observe(ptrTo(podOf(c).Ready()), "second")
	expect("running again", "second", "second")
}

func TestTheClassIsRecordedInTheFirstStatusAfterThePodWasCreated(t *testing.T) {
	c := makeConversation("ns", "c")
	o := Observation{Conversation: c.Conversation, Bounds: boundsOf(&c.Spec), SettingsExist: true, ClassName: "small",
		Now: at(1)}
	c.Status = NewStatus(o, Judge(o))
	reason := c.Status.Reason
	o.Pod, c.Generation = podOf(c).Pod, 2
	if c.Status = NewStatus(o, Judge(o)); c.Status.Reason != reason || c.Status.SessionClass == nil ||
		!c.Status.SessionClass.SignedSecret {
		t.Errorf("recorded %+v, reason %s after %s", c.Status.SessionClass, c.Status.Reason, reason)
	}
}

func TestAPodOfAnOlderVersionIsRecordedWithAnUnsignedSecret(t *testing.T) {
	c := makeConversation("ns", "c").Started(0)
	pod := podOf(c).Ready()
	delete(pod.Labels, v1alpha1.LabelProtocol) // Parley 0.1.0 did not set this label
	o := Observation{Conversation: c.Conversation, Pod: pod.Pod, Bounds: boundsOf(&c.Spec), SettingsExist: true,
		ClassName: "small", Now: at(1)}
	if got := NewStatus(o, Judge(o)).SessionClass; got == nil || got.SignedSecret {
		t.Errorf("recorded %+v", got)
	}
}

func TestLifetimesBeyondTheLimitsOfAClassAreReduced(t *testing.T) {
	hour, day := &metav1.Duration{Duration: time.Hour}, &metav1.Duration{Duration: 24 * time.Hour}
	limits := &v1alpha1.LifetimeLimits{IdleTimeout: hour, StartDeadline: hour, MaxDuration: hour, TTLAfterStopped: hour}
	endless := &metav1.Duration{}
	for name, c := range map[string]struct {
		limits          *v1alpha1.LifetimeLimits
		requested, want *metav1.Duration
		// ttl is the expected TTL. If ttl is nil, the value of want is the expected TTL. A TTL of zero
		// means immediate deletion, so it stays zero. A zero in the other lifetimes means endless, so the
		// limit replaces it.
		ttl *metav1.Duration
	}{
		"no limits":       {nil, day, day, day},
		"below the limit": {limits, &metav1.Duration{Duration: time.Minute}, &metav1.Duration{Duration: time.Minute}, nil},
		"beyond":          {limits, day, hour, hour},
		"endless":         {limits, endless, hour, endless},
	} {
		got := Bounds{Limits: c.limits}.For(&v1alpha1.ConversationSpec{IdleTimeout: c.requested,
			StartDeadline: c.requested, MaxDuration: c.requested, TTLAfterStopped: c.requested})
		want := c.want.Duration
		if ttl := cmp.Or(c.ttl, c.want).Duration; got.IdleTimeout != want || got.StartDeadline != want ||
			got.MaxDuration != want || *got.TTL != ttl {
			t.Errorf("%s: %+v, TTL %s", name, got, *got.TTL)
		}
	}
}

func TestAnUpgradeDoesNotRewriteTheStatusOfRunningSessions(t *testing.T) {
	c := makeConversation("ns", "c")
	o := Observation{Conversation: c.Conversation, Bounds: boundsOf(&c.Spec), SettingsExist: true,
		Pod: podOf(c).Ready().Pod, Now: at(1)}
	c.Status = NewStatus(o, Judge(o))
	o.ClassName = "small"
	if after := NewStatus(o, Judge(o)); after.SessionClass != nil {
		t.Errorf("recorded %+v without another change", after.SessionClass)
	}
}
