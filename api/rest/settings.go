package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/parley-dev/parley/api/v1alpha1"
	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// FieldOwner owns what the facade writes.
const FieldOwner = "parley-facade"

// maxKeys is how many keys one request may bring: each is a Secret to write.
const maxKeys = 256

// writeAgain spreads writers in several facades that meet at the same settings; within one facade they queue.
var writeAgain = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 14}

func (s *server) getSettings(ctx context.Context, u *user, _ request) answer {
	// Not from the cache: a client that has just stored settings must see them.
	live, err := s.cluster.settings(ctx, u.key())
	switch {
	case apierrors.IsNotFound(err):
		return unauthorized
	case err != nil:
		return failed(ctx, err, nil)
	case nothingStored(live):
		return answer{code: http.StatusNotFound, body: map[string]string{"error": "Settings not found"}}
	}
	return ok(storedSettings(&live.Spec))
}

// nothingStored says that nobody has set anything yet. The object must exist for its user to have a key at all.
func nothingStored(settings *v1alpha1.UserSettings) bool {
	if settings.Annotations[v1alpha1.AnnotationSettingsStored] != "" {
		return false
	}
	stored := ac.UserSettingsSpecApplyConfiguration{}
	empty := ac.UserSettingsSpecApplyConfiguration{}
	if convert(settings.Spec, &stored) != nil {
		return false
	}
	stored.SessionKeyRef = nil
	defaults(&stored)
	defaults(&empty)
	return reflect.DeepEqual(stored, empty)
}

func (s *server) postSettings(ctx context.Context, u *user, r request) answer {
	fields, details := decodeBody(r.body)
	if len(details) > 0 {
		return invalidRequest(details)
	}
	// Writers of one user's settings queue here, so that they do not fail one another's writes over and over.
	unlock := s.writers.lock(u.key().String())
	defer unlock()
	request, details := decodeSettings(fields)
	if len(details) == 0 {
		result := s.storeSettings(ctx, u, request)
		if result.code != http.StatusUnprocessableEntity {
			return result
		}
		details = detailsOf(result)
	}
	return invalidRequest(allDetails(fields, details, func(fields map[string]json.RawMessage) []Detail {
		request, details := decodeSettings(fields)
		if len(details) > 0 {
			return details
		}
		return detailsOf(s.checkSettings(ctx, u, request))
	}))
}

// settingsPlan is how a request is to be written over what is stored.
type settingsPlan struct {
	live *v1alpha1.UserSettings
	// spec is what the facade owns, with the change: what is applied.
	spec *ac.UserSettingsSpecApplyConfiguration
	// wanted is what must come out of it.
	wanted  *ac.UserSettingsSpecApplyConfiguration
	touched []string
	force   bool
}

func planSettings(live *v1alpha1.UserSettings, request *Settings) (*settingsPlan, error) {
	owned, err := ac.ExtractUserSettings(live, FieldOwner)
	if err != nil {
		return nil, err
	}
	if owned.Spec == nil {
		owned.Spec = ac.UserSettingsSpec()
	}
	wanted := ac.UserSettingsSpec()
	if err := convert(live.Spec, wanted); err != nil {
		return nil, err
	}
	keys := settingsKeys(live.Name)
	edited := ac.UserSettingsSpec()
	if err := convert(owned.Spec, edited); err != nil {
		return nil, err
	}
	plan := &settingsPlan{live: live, wanted: wanted}
	plan.touched = editSpec(edited, request, keys).touched
	editSpec(plan.wanted, request, keys)
	defaults(plan.wanted)
	plan.spec, err = plan.withoutOthers(edited, owned.Spec)
	return plan, err
}

// configuration is fresh each time: the client writes the answer into it. The version makes sure that it is applied to what
// it was planned for, else two clients at once would take one another's fields away.
func (p *settingsPlan) configuration() (*ac.UserSettingsApplyConfiguration, error) {
	spec := ac.UserSettingsSpec()
	err := convert(p.spec, spec)
	return ac.UserSettings(p.live.Name, p.live.Namespace).WithResourceVersion(p.live.ResourceVersion).
		WithAnnotations(map[string]string{v1alpha1.AnnotationSettingsStored: "true"}).WithSpec(spec), err
}

// storeSettings writes nothing before the API server has agreed to all of it. Then the keys go first, and what refers to them second.
// Without keys, and among fields that are nobody else's, it agrees to all or nothing when it is asked to write.
func (s *server) storeSettings(ctx context.Context, u *user, request *Settings) answer {
	keys := settingsKeys(u.name).ofSettings(request)
	if len(keys) > maxKeys {
		return invalidRequest([]Detail{{"too_long", location{"body"}, "A request may bring at most 256 keys"}})
	}
	var result answer
	written := false
	err := wait.ExponentialBackoffWithContext(ctx, writeAgain, func(ctx context.Context) (bool, error) {
		plan, refused := s.plan(ctx, u, request)
		if refused == nil && (len(keys) > 0 || plan.contested()) {
			refused = s.check(ctx, plan)
		}
		if refused != nil {
			result = *refused
			return result.code != 0, nil
		}
		if !written {
			for _, key := range keys {
				secret := buildKeySecret(key, plan.live, "UserSettings", v1alpha1.LabelUserSettings, s.now())
				if refused := s.writeSecret(ctx, secret); refused != nil {
					result = *refused
					return true, nil
				}
			}
			written = true
		}
		result = s.apply(ctx, plan, false)
		return result.code != 0, nil
	})
	if err != nil {
		return unavailable() // still not through after many tries, or out of time
	}
	return result
}

// checkSettings asks what the API server would say.
func (s *server) checkSettings(ctx context.Context, u *user, request *Settings) answer {
	plan, refused := s.plan(ctx, u, request)
	if refused == nil {
		refused = s.check(ctx, plan)
	}
	if refused != nil {
		return *refused
	}
	return ok(nil)
}

// again is the answer to a plan that others have overtaken.
var again = answer{}

// plan how to write a request over what is stored now.
func (s *server) plan(ctx context.Context, u *user, request *Settings) (*settingsPlan, *answer) {
	live, err := s.cluster.settings(ctx, u.key())
	if apierrors.IsNotFound(err) || err == nil && live.UID != u.uid {
		return nil, &unauthorized
	}
	if err != nil {
		refused := failed(ctx, err, nil)
		return nil, &refused
	}
	plan, err := planSettings(live, request)
	if err != nil {
		refused := failed(ctx, err, nil)
		return nil, &refused
	}
	return plan, nil
}

// check that the API server agrees to a plan.
func (s *server) check(ctx context.Context, plan *settingsPlan) *answer {
	if result := s.apply(ctx, plan, true); result.code != http.StatusOK {
		return &result
	}
	return nil
}

// apply applies a plan, or just asks whether it could be.
func (s *server) apply(ctx context.Context, plan *settingsPlan, dryRun bool) answer {
	config, err := plan.configuration()
	if err != nil {
		return failed(ctx, err, nil)
	}
	result, err := s.cluster.applySettings(ctx, config, applyOptions{dryRun: dryRun, force: plan.force})
	conflicts := causesOf(err, metav1.CauseTypeFieldManagerConflict)
	switch {
	case len(conflicts) > 0 && dryRun && !plan.force && plan.onlyDefaults(conflicts):
		plan.force = true
		return s.apply(ctx, plan, dryRun)
	case len(conflicts) > 0:
		return refusal(http.StatusConflict, plan.conflictDetails(conflicts))
	case apierrors.IsConflict(err):
		return again
	case err != nil:
		if inTheWay := secretsInTheWay(err, plan.names); len(inTheWay) > 0 {
			return refusal(http.StatusConflict, inTheWay)
		}
		return failed(ctx, err, plan.names)
	}
	if kept := plan.keptByOthers(result); len(kept) > 0 {
		return refusal(http.StatusConflict, kept)
	}
	return ok(Stored{Message: "Settings stored"})
}

// names of the entries in the wanted lists.
func (p *settingsPlan) names(list string, index int) string {
	store := p.wanted.SecretsStore
	switch {
	case store == nil:
	case list == "providerTokens" && index < len(store.ProviderTokens):
		return string(*store.ProviderTokens[index].Provider)
	case list == "customSecrets" && index < len(store.CustomSecrets):
		return *store.CustomSecrets[index].Name
	}
	return ""
}

// writeSecret writes a key whole. The facade cannot read Secrets, so it does not look first.
func (s *server) writeSecret(ctx context.Context, secret *corev1.Secret) *answer {
	err := s.cluster.writeSecret(ctx, secret)
	var refused answer
	switch {
	case err == nil:
		return nil
	case apierrors.IsInvalid(err) || forbidden(err):
		refused = refusal(http.StatusConflict, "The Secret "+secret.Name+" cannot be written: a Secret of this name that is not a user's key, or a policy, stands in the way")
	default:
		refused = failed(ctx, err, nil)
	}
	return &refused
}

// detailsOf are the details of an answer that has some.
func detailsOf(a answer) []Detail {
	if body, ok := a.body.(map[string]any); ok && a.code == http.StatusUnprocessableEntity {
		details, _ := body["detail"].([]Detail)
		return details
	}
	return nil
}

// maxRounds bounds how often a bad request is tried again: types, schema, rules, webhook.
const maxRounds = 4

// allDetails finds all that is wrong with a request. It is checked in stages, and a stage is not reached while the one
// before it complains, so what was complained about is left out and the rest is checked again.
func allDetails(fields map[string]json.RawMessage, details []Detail, check func(map[string]json.RawMessage) []Detail) []Detail {
	all, found := details, details
	for range maxRounds {
		for _, detail := range found {
			if len(detail.Loc) < 2 {
				return all // about the whole: nothing can be left out
			}
			name, _ := detail.Loc[1].(string)
			delete(fields, name)
			if _, has := fields["repository"]; !has && slices.Contains([]string{"repository", "suggested_task", "create_microagent"}, name) {
				// A branch needs a repository; that it has lost it is not the client's mistake.
				fields["repository"] = json.RawMessage(`"owner/name"`)
			}
		}
		if found = check(fields); len(found) == 0 {
			break
		}
		all = append(all, found...)
	}
	return all
}
