// Package settings stores and shows the settings of users.
package settings

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/managed"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Store stores the settings of all users.
type Store struct{ Cluster cluster.API }

// retryBackoff delays the retries after a conflict. Writes conflict if several facades write the
// same settings. Within one facade, the writes of a user run one after another.
var retryBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 14}

// Live reads a user's settings from the API server. A user whose settings were deleted is
// unauthorized.
func Live(ctx context.Context, c cluster.API, u *auth.User) (*v1alpha1.UserSettings, error) {
	live, err := c.Settings(ctx, u.Key())
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != u.UID:
		return nil, answer.Unauthorized
	case err != nil:
		return nil, cluster.Refusal(ctx, err, nil)
	}
	return live, nil
}

// Get returns the settings. It does not use the cache, because a client must see its own writes.
func (s *Store) Get(ctx context.Context, u *auth.User) (any, error) {
	live, err := Live(ctx, s.Cluster, u)
	if err != nil {
		return nil, err
	}
	effective, err := Effective(ctx, s.Cluster, live)
	switch {
	case err != nil:
		return nil, err
	case NothingStored(effective):
		return nil, &answer.Refusal{Code: http.StatusNotFound, Body: map[string]string{"error": "Settings not found"}}
	}
	return view(&live.Spec, &effective.Spec)
}

// NothingStored reports whether effective settings contain neither stored nor inherited values. The
// UserSettings object itself always exists.
func NothingStored(settings *v1alpha1.UserSettings) bool {
	if settings.Annotations[v1alpha1.AnnotationSettingsStored] != "" {
		return false
	}
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&settings.Spec)
	if err != nil {
		return false
	}
	for _, setting := range rest.SettingsOf(&rest.Settings{}) {
		if stored := spec[setting.Spec]; stored != nil && stored != setting.Default {
			return false
		}
	}
	return true
}

// keyless are prefixes of model names. The providers of these models authenticate without a key, or
// run on the user's machines.
var keyless = []string{"bedrock/", "hosted_vllm/", "llamafile/", "lm_studio/", "ollama/", "ollama_chat/", "sagemaker/",
	"vertex_ai/", "vertex_ai_beta/", "vllm/", "xinference/"}

// CheckComplete returns an error if the effective settings lack a value that every session needs.
// The parameter model is the conversation's own model. If it is nil, the conversation uses the
// model in the settings.
func CheckComplete(settings *v1alpha1.UserSettings, model *string) error {
	effective := (&v1alpha1.ConversationSpec{LLMModel: model}).EffectiveSettings(&settings.Spec)
	switch {
	case NothingStored(settings):
		return answer.BadRequest("CONFIGURATION$SETTINGS_NOT_FOUND", "Settings not found: save your settings first")
	case needsKey(effective) && settings.Spec.LLMAPIKeyRef == nil:
		return answer.BadRequest("STATUS$ERROR_LLM_AUTHENTICATION", "The model needs an API key: save llm_api_key "+
			"in your settings")
	}
	return nil
}

func needsKey(spec *v1alpha1.UserSettingsSpec) bool {
	// With a custom base URL, only the user knows whether the model needs a key.
	if spec.LLMModel == nil || spec.LLMBaseURL != nil {
		return false
	}
	for _, provider := range keyless {
		if strings.HasPrefix(*spec.LLMModel, provider) {
			return false
		}
	}
	return true
}

// Post stores the settings in a request body. A refused request stores nothing. A request that
// fails halfway may have replaced keys. If it also changes the model's endpoint, the new key is
// never sent to the old endpoint. The error lists all problems of an invalid body, or the errors of
// the API server.
func (s *Store) Post(ctx context.Context, u *auth.User, body []byte) (any, error) {
	request, details := rest.DecodeSettings(body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	if err := s.store(ctx, u, rest.SettingsOf(request)); err != nil {
		return nil, err
	}
	return rest.Stored{Message: "Settings stored"}, nil
}

var errChanged = errors.New("the settings changed since they were read")

// store tries the whole request in a dry run first, so that a refused request changes nothing. It
// then writes the keys, and at the end the spec, which refers to the keys. If the request has no
// keys, and no other field manager owns its fields, no dry run is needed: store then only applies
// the spec, which is atomic.
func (s *Store) store(ctx context.Context, u *auth.User, request []rest.Setting) error {
	var written []managed.Key
	err := wait.ExponentialBackoffWithContext(ctx, retryBackoff, func(ctx context.Context) (bool, error) {
		live, err := Live(ctx, s.Cluster, u)
		if err != nil {
			return true, err
		}
		plan, err := s.plan(ctx, live, request)
		if err == nil {
			err = managed.TooMany(plan.keys, "body")
		}
		if err == nil && (len(plan.keys) > 0 || plan.contested()) {
			err = s.apply(ctx, plan, true)
		}
		if err == nil && !slices.Equal(written, plan.keys) {
			err = managed.Write(ctx, s.Cluster, plan.keys, plan.live, time.Now())
			written = plan.keys
		}
		if err == nil {
			err = s.apply(ctx, plan, false)
		}
		if errors.Is(err, errChanged) {
			return false, nil
		}
		return true, err
	})
	if wait.Interrupted(err) {
		return answer.Unavailable // too many conflicts, or the timeout
	}
	return err
}

// plan prepares the write of a request. It leaves out the values that only repeat inherited values.
func (s *Store) plan(ctx context.Context, live *v1alpha1.UserSettings, request []rest.Setting) (*plan, error) {
	effective, err := Effective(ctx, s.Cluster, live)
	if err != nil {
		return nil, err
	}
	if effective != live {
		compared, err := newInheritance(&live.Spec, &effective.Spec)
		if err != nil {
			return nil, fmt.Errorf("compare the inherited settings: %w", err)
		}
		request = compared.changes(request)
	}
	return newPlan(live, request)
}

func (s *Store) apply(ctx context.Context, plan *plan, dryRun bool) error {
	became, err := s.Cluster.ApplySettings(ctx, plan.live, plan.apply, cluster.ApplyOptions{DryRun: dryRun,
		Force: plan.force})
	conflicts := cluster.CausesOf(err, metav1.CauseTypeFieldManagerConflict)
	switch {
	case len(conflicts) > 0 && dryRun && !plan.force && len(plan.conflictDetails(conflicts)) == 0:
		plan.force = true
		return s.apply(ctx, plan, dryRun)
	case len(conflicts) > 0:
		return answer.Refuse(http.StatusConflict, plan.conflictDetails(conflicts))
	case apierrors.IsConflict(err):
		return errChanged
	case err != nil:
		if conflicts := cluster.SecretConflicts(err, plan.names); len(conflicts) > 0 {
			return answer.Refuse(http.StatusConflict, conflicts)
		}
		return cluster.Refusal(ctx, err, plan.names)
	}
	if details := plan.keptByOthers(became); len(details) > 0 {
		return answer.Refuse(http.StatusConflict, details)
	}
	return nil
}
