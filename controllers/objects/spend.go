package objects

import (
	"cmp"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// defaultNoticePercent is the share of a spending limit above which users get a notice.
const defaultNoticePercent = 80

// SpendClaims returns claims that say who pays for a session with these settings, and which limits
// the class has.
func (c Class) SpendClaims(settings *v1alpha1.UserSettings) (*session.SpendClaims, error) {
	claims := &session.SpendClaims{Owner: cmp.Or(settings.OwnerName(), string(settings.UID)),
		Namespace: settings.Namespace}
	limits := c.Spec.Spend
	if limits == nil {
		return claims, nil
	}
	claims.Soft = int(ptr.Deref(limits.NoticePercent, defaultNoticePercent))
	for _, of := range []struct {
		limit *v1alpha1.SpendingLimit
		into  *session.SpendLimits
	}{{limits.PerUser, &claims.PerUser}, {limits.PerNamespace, &claims.PerNamespace}} {
		if of.limit == nil {
			continue
		}
		var err error
		if *of.into, err = session.ParseLimits(of.limit.Day, of.limit.Month); err != nil {
			return nil, fmt.Errorf("SessionClass %s: spec.spend: %w", c.Name, err)
		}
	}
	return claims, nil
}

// SpendNotAllowed returns a blocker if the class has spending limits that cannot be enforced in a
// session with these settings, models and archive. The limits also need Parley's own runtime, but
// NotAllowed checks that.
func (c Class) SpendNotAllowed(settings *v1alpha1.UserSettingsSpec, models session.Models,
	archiveURL string) *lifecycle.Blocker {
	model := ptr.Deref(settings.LLMModel, "")
	switch {
	case c.Spec.Spend == nil:
	case archiveURL == "":
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "SessionClass %s has spending limits, which need the "+
			"archive, but this installation has no archive", c.Name)
	case model != "" && !models.HasPrice(model, ptr.Deref(settings.LLMBaseURL, "")):
		return lifecycle.NewBlocker(v1alpha1.ReasonNotAllowed, "spec.llmModel: SessionClass %s has spending limits, but "+
			"the model %s has no price in the ConfigMap %s", c.Name, model, v1alpha1.ModelsName)
	}
	return nil
}
