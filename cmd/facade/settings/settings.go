// Package settings stores and shows the settings of users.
package settings

import (
	"context"
	"errors"
	"net/http"
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

// Store of the settings of all users.
type Store struct{ Cluster cluster.API }

// writeAgain spreads writers in several facades that meet at the same settings; within one facade
// the requests of a user queue.
var writeAgain = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 14}

// Live settings of a user. Who has none any more is nobody.
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

// Get shows the settings. Not from the cache: a client that has just stored settings must see them.
func (s *Store) Get(ctx context.Context, u *auth.User) (any, error) {
	live, err := Live(ctx, s.Cluster, u)
	switch {
	case err != nil:
		return nil, err
	case NothingStored(live):
		return nil, &answer.Refusal{Code: http.StatusNotFound, Body: map[string]string{"error": "Settings not found"}}
	}
	return view(&live.Spec)
}

// NothingStored says that nobody has set anything yet. The object must exist for its user to have a
// key at all.
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

// keyless are model providers that authenticate by other means than a key, or run on the user's own
// machines.
var keyless = []string{"bedrock/", "hosted_vllm/", "llamafile/", "lm_studio/", "ollama/", "ollama_chat/", "sagemaker/",
	"vertex_ai/", "vertex_ai_beta/", "vllm/", "xinference/"}

// Suffice says what a session with these settings would lack.
func Suffice(settings *v1alpha1.UserSettings) error {
	switch {
	case NothingStored(settings):
		return answer.BadRequest("CONFIGURATION$SETTINGS_NOT_FOUND", "Settings not found: store them with POST /api/settings "+
			"first")
	case needsKey(&settings.Spec) && settings.Spec.LLMAPIKeyRef == nil:
		return answer.BadRequest("STATUS$ERROR_LLM_AUTHENTICATION", "The model needs a key: store llm_api_key with POST "+
			"/api/settings")
	}
	return nil
}

func needsKey(spec *v1alpha1.UserSettingsSpec) bool {
	// With an address of its own, only the user can tell.
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

// Post stores the settings in a body. If something is wrong with it nothing is stored: the error lists
// all that decoding finds, or else all that the API server reports.
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

// errOvertaken says that others have changed the settings since they were read.
var errOvertaken = errors.New("the settings have changed")

// store writes nothing before the API server has agreed to all of it. Then the keys go first, and
// what refers to them second. Without keys, and among fields that are nobody else's, it agrees to
// all or nothing when it is asked to write.
func (s *Store) store(ctx context.Context, u *auth.User, request []rest.Setting) error {
	written := false
	err := wait.ExponentialBackoffWithContext(ctx, writeAgain, func(ctx context.Context) (bool, error) {
		live, err := Live(ctx, s.Cluster, u)
		if err != nil {
			return true, err
		}
		plan, err := newPlan(live, request)
		if err == nil {
			err = managed.TooMany(plan.keys, "body")
		}
		if err == nil && (len(plan.keys) > 0 || plan.contested()) {
			err = s.apply(ctx, plan, true)
		}
		if err == nil && !written {
			err = managed.Write(ctx, s.Cluster, plan.keys, plan.live, time.Now())
			written = err == nil
		}
		if err == nil {
			err = s.apply(ctx, plan, false)
		}
		if errors.Is(err, errOvertaken) {
			return false, nil
		}
		return true, err
	})
	if wait.Interrupted(err) {
		return answer.Unavailable // still not through after many tries, or out of time
	}
	return err
}

// apply a plan, or just ask whether it could be.
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
		return errOvertaken
	case err != nil:
		if inTheWay := cluster.SecretsInTheWay(err, plan.names); len(inTheWay) > 0 {
			return answer.Refuse(http.StatusConflict, inTheWay)
		}
		return cluster.Refusal(ctx, err, plan.names)
	}
	if details := plan.keptByOthers(became); len(details) > 0 {
		return answer.Refuse(http.StatusConflict, details)
	}
	return nil
}
