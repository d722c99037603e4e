package v1alpha1

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxFactor returns the largest remoteRuntimeResourceFactor that the class allows.
func (s *SessionClassSpec) MaxFactor() int32 {
	if s.Resources == nil || s.Resources.MaxFactor == nil {
		return 8
	}
	return *s.Resources.MaxFactor
}

// AllowsImage reports whether settings and agents may name this image. In a pattern, * matches any
// characters, including slashes, as administrators expect for a registry prefix.
func (s *SessionClassSpec) AllowsImage(image string) bool {
	if s.Images == nil || len(s.Images.Allowed) == 0 {
		return true
	}
	flat := func(text string) string { return strings.ReplaceAll(text, "/", "\x00") }
	return slices.ContainsFunc(s.Images.Allowed, func(pattern string) bool {
		matches, err := path.Match(flat(pattern), flat(image))
		return err == nil && matches
	})
}

// SettingsErrors lists the settings that the class does not allow.
func (s *SessionClassSpec) SettingsErrors(class string, settings *UserSettingsSpec) (errs field.ErrorList) {
	forbid := func(name, allowed string) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", name), "SessionClass "+class+" allows "+allowed))
	}
	for _, image := range []struct {
		name  string
		value *string
	}{{"sandboxRuntimeContainerImage", settings.SandboxRuntimeContainerImage}, {"sandboxBaseContainerImage",
		settings.SandboxBaseContainerImage}} {
		if image.value != nil && !s.AllowsImage(*image.value) {
			forbid(image.name, "only images like "+strings.Join(s.Images.Allowed, ", "))
		}
	}
	if factor := settings.RemoteRuntimeResourceFactor; factor != nil && *factor > s.MaxFactor() {
		forbid("remoteRuntimeResourceFactor", "at most "+strconv.Itoa(int(s.MaxFactor())))
	}
	if most := s.MaxIterations; most != nil && settings.MaxIterations != nil && *settings.MaxIterations > *most {
		forbid("maxIterations", "at most "+strconv.Itoa(int(*most)))
	}
	if most := s.MaxBudgetPerTask; most != nil && settings.MaxBudgetPerTask != nil && moreThan(*settings.MaxBudgetPerTask,
		*most) {
		forbid("maxBudgetPerTask", "at most "+*most)
	}
	if len(s.Agents) > 0 && settings.Agent != nil && !slices.Contains(s.Agents, *settings.Agent) {
		forbid("agent", "only "+strings.Join(s.Agents, ", "))
	}
	return errs
}

// ConversationErrors lists the fields of a Conversation that the class does not allow.
func (s *SessionClassSpec) ConversationErrors(class string, conversation *ConversationSpec) (errs field.ErrorList) {
	if s.Lifetimes == nil {
		return nil
	}
	for _, limit := range []struct {
		name  string
		value *metav1.Duration
		bound *Lifetime
		// zeroIsEndless is set if zero means no limit.
		zeroIsEndless bool
	}{
		{"idleTimeout", conversation.IdleTimeout, s.Lifetimes.IdleTimeout, true},
		{"startDeadline", conversation.StartDeadline, s.Lifetimes.StartDeadline, true},
		{"maxDuration", conversation.MaxDuration, s.Lifetimes.MaxDuration, true},
		{"ttlAfterStopped", conversation.TTLAfterStopped, s.Lifetimes.TTLAfterStopped, false},
	} {
		if limit.value == nil || limit.bound == nil || limit.bound.Max == nil || limit.bound.Max.Duration == 0 {
			continue
		}
		if most := limit.bound.Max.Duration; limit.value.Duration > most ||
			limit.zeroIsEndless && limit.value.Duration == 0 {
			errs = append(errs, field.Forbidden(field.NewPath("spec", limit.name), "SessionClass "+class+" allows at most "+
				most.String()))
		}
	}
	return errs
}

// moreThan compares two decimals, which the schema has validated.
func moreThan(a, b string) bool {
	x, errX := resource.ParseQuantity(a)
	y, errY := resource.ParseQuantity(b)
	return errX == nil && errY == nil && x.Cmp(y) > 0
}
