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

// defaultMaxConversations bounds the storage that one user can fill, and is more than a person needs.
const defaultMaxConversations = 1000

// MaxConversations returns the largest number of Conversations of one UserSettings.
func (s *SessionClassSpec) MaxConversations() int {
	if s.MaxConversationsPerUser == nil {
		return defaultMaxConversations
	}
	return int(*s.MaxConversationsPerUser)
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
	s.checkImages(settings, forbid)
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
	if expose := settings.ExposeGitTokenToAgent; s.ExposeGitTokenToAgent != nil && !*s.ExposeGitTokenToAgent &&
		expose != nil && *expose {
		forbid("exposeGitTokenToAgent", "only false")
	}
	if len(s.Agents) > 0 && settings.Agent != nil && !slices.Contains(s.Agents, *settings.Agent) {
		forbid("agent", "only "+strings.Join(s.Agents, ", "))
	}
	return errs
}

func (s *SessionClassSpec) checkImages(settings *UserSettingsSpec, forbid func(name, allowed string)) {
	for _, image := range []struct {
		name  string
		value *string
	}{{"sandboxRuntimeContainerImage", settings.SandboxRuntimeContainerImage}, {"sandboxBaseContainerImage",
		settings.SandboxBaseContainerImage}} {
		if image.value != nil && !s.AllowsImage(*image.value) {
			forbid(image.name, "only images like "+strings.Join(s.Images.Allowed, ", "))
		}
	}
	if s.Spend != nil && settings.SandboxRuntimeContainerImage != nil {
		forbid("sandboxRuntimeContainerImage", "no runtime image in settings, because the class has spending limits")
	}
}

// ConversationErrors lists the fields of a Conversation that the class does not allow.
func (s *SessionClassSpec) ConversationErrors(class string, conversation *ConversationSpec) field.ErrorList {
	return append(s.workspaceErrors(class, conversation.Workspace), s.Limits().Errors(class, conversation)...)
}

func (s *SessionClassSpec) workspaceErrors(class string, workspace *Workspace) (errs field.ErrorList) {
	if s.WorkspaceLimits == nil || workspace == nil {
		return nil
	}
	path := field.NewPath("spec", "workspace")
	size, err := resource.ParseQuantity(workspace.Size)
	if most := s.WorkspaceLimits.MaxSize; most != nil && (err != nil || size.Cmp(*most) > 0) {
		errs = append(errs, field.Forbidden(path.Child("size"), "SessionClass "+class+" allows at most "+most.String()))
	}
	if allowed := s.WorkspaceLimits.StorageClassNames; len(allowed) > 0 && (workspace.StorageClassName == nil ||
		!slices.Contains(allowed, *workspace.StorageClassName)) {
		errs = append(errs, field.Forbidden(path.Child("storageClassName"), "SessionClass "+class+" allows only "+
			strings.Join(allowed, ", ")))
	}
	return errs
}

// Limits returns the largest lifetimes that the class allows, or nil if it has no limits.
func (s *SessionClassSpec) Limits() *LifetimeLimits {
	if s.Lifetimes == nil {
		return nil
	}
	of := func(l *Lifetime) *metav1.Duration {
		if l == nil || l.Max == nil || l.Max.Duration == 0 {
			return nil
		}
		return l.Max
	}
	limits := LifetimeLimits{IdleTimeout: of(s.Lifetimes.IdleTimeout), StartDeadline: of(s.Lifetimes.StartDeadline),
		MaxDuration: of(s.Lifetimes.MaxDuration), TTLAfterStopped: of(s.Lifetimes.TTLAfterStopped)}
	if limits == (LifetimeLimits{}) {
		return nil
	}
	return &limits
}

// Errors lists the lifetimes of a Conversation that exceed the limits of a class.
func (l *LifetimeLimits) Errors(class string, conversation *ConversationSpec) (errs field.ErrorList) {
	if l == nil {
		return nil
	}
	for _, limit := range []struct {
		name          string
		value, max    *metav1.Duration
		zeroIsEndless bool
	}{
		{"idleTimeout", conversation.IdleTimeout, l.IdleTimeout, true},
		{"startDeadline", conversation.StartDeadline, l.StartDeadline, true},
		{"maxDuration", conversation.MaxDuration, l.MaxDuration, true},
		{"ttlAfterStopped", conversation.TTLAfterStopped, l.TTLAfterStopped, false},
	} {
		if limit.value == nil || limit.max == nil {
			continue
		}
		if limit.value.Duration > limit.max.Duration || limit.zeroIsEndless && limit.value.Duration == 0 {
			errs = append(errs, field.Forbidden(field.NewPath("spec", limit.name), "SessionClass "+class+" allows at most "+
				limit.max.Duration.String()))
		}
	}
	return errs
}

// moreThan reports whether a > b. The schema has validated both decimals.
func moreThan(a, b string) bool {
	x, errX := resource.ParseQuantity(a)
	y, errY := resource.ParseQuantity(b)
	return errX == nil && errY == nil && x.Cmp(y) > 0
}
