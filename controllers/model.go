package controllers

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

const (
	// modelTimeout limits the duration of an upload to the archive.
	modelTimeout = 5 * time.Second
	modelWorkers = 2
	// minModelRetry and maxModelRetry limit the delay before a retry.
	minModelRetry, maxModelRetry = time.Second, time.Minute
	// keyDelay is the delay between a change of a Secret and the reconcile. The facade writes a new
	// key before it writes the settings, and the session should get both as one change.
	keyDelay = time.Second
	// A session gets up to modelBurst changes of its model without delay, and then one change per
	// modelInterval. The rate is limited because a change of the settings reaches all running
	// sessions of a user. For each session, it costs three reads, one upload and one write.
	modelBurst, modelInterval = 5, 20 * time.Second
)

// modelReconciler sends a changed model to running sessions, through the archive. It has its own
// queue, so that a hanging archive does not delay other reconcilers.
type modelReconciler struct {
	*gatherer
	client client.Client
	sends  *lru.Cache // UID of a session's Secret to *modelSends
	// contents maps the revision of a model to its modelContent. After a change, all sessions of a
	// user have the same revision, so the key is read only for the first of them.
	contents *lru.Cache
}

// modelContent is a hash of a model and its key.
type modelContent [sha256.Size]byte

// modelSends describes the model of a running session. The Secret of the key may change without a
// change of the key. The model then gets a new revision, but is not sent again.
type modelSends struct {
	limiter *rate.Limiter
	// content is the content of the session's model; zero if unknown. revision is the last revision
	// that has this content.
	content  modelContent
	revision string
	// uncertain is set if the manager may have sent a model without recording its revision. content
	// and revision may then be wrong.
	uncertain bool
}

// has reports whether the session has a model with this content. If so, it remembers the revision.
func (s *modelSends) has(content modelContent, revision string) bool {
	if s.uncertain || s.content != content {
		return false
	}
	s.revision = revision
	return true
}

func newModelReconciler(g *gatherer, c client.Client) *modelReconciler {
	return &modelReconciler{gatherer: g, client: c, sends: lru.New(maxRemembered),
		contents: lru.New(maxRemembered)}
}

func (r *modelReconciler) setup(mgr ctrl.Manager) error {
	if r.options.ArchiveURL == "" {
		return nil
	}
	starts := predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return isRunning(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool { return isRunning(e.ObjectNew) && !isRunning(e.ObjectOld) },
	}
	ofSettings := func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.conversationsOf(ctx, client.ObjectKeyFromObject(o))
	}
	ofSecret := func(ctx context.Context, secret client.Object) (requests []reconcile.Request) {
		for _, settings := range requestsForSecret(ctx, r.cache, &v1alpha1.UserSettingsList{}, secret) {
			requests = append(requests, r.conversationsOf(ctx, settings.NamespacedName)...)
		}
		return requests
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("model").
		For(&v1alpha1.Conversation{}, builder.WithPredicates(starts)).
		Watches(&v1alpha1.UserSettings{}, handler.EnqueueRequestsFromMapFunc(ofSettings),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(&corev1.Secret{}, afterDelay(keyDelay, ofSecret)).
		WithOptions(controller.Options{MaxConcurrentReconciles: modelWorkers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minModelRetry, maxModelRetry)}).
		Complete(r)
}

func isRunning(o client.Object) bool {
	return o.(*v1alpha1.Conversation).Status.State == v1alpha1.StateRunning
}

func (r *modelReconciler) conversationsOf(ctx context.Context, settings client.ObjectKey) []reconcile.Request {
	return requestsFor(ctx, r.cache, &v1alpha1.ConversationList{}, settings.Namespace, v1alpha1.IndexUserSettingsName,
		settings.Name, isRunning)
}

// Reconcile compares the model of a running session with the session's settings. It reads from the
// API server only if they differ.
func (r *modelReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c, pod, secret := &v1alpha1.Conversation{}, &corev1.Pod{}, secretMetadata()
	settings, key := &v1alpha1.UserSettings{}, secretMetadata()
	if err := r.cache.Get(ctx, req.NamespacedName, c); err != nil || c.Status.State != v1alpha1.StateRunning ||
		c.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.cache.Get(ctx, podObject(c), pod); err != nil || !owned(pod, c) ||
		pod.Labels[v1alpha1.LabelModel] == "" {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.metadata.Get(ctx, sessionObject(c), secret); err != nil || !owned(secret, c) {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	named := client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}
	if err := r.cache.Get(ctx, named, settings); err != nil || !c.BelongsTo(settings) {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if inheritsModel(settings) {
		return reconcile.Result{}, nil
	}
	if ref := settings.Spec.LLMAPIKeyRef; ref != nil {
		named.Name = ref.Name
		if err := r.metadata.Get(ctx, named, key); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", ref.Name, err)
		}
	}
	sent := cmp.Or(secret.Annotations[v1alpha1.AnnotationModel], pod.Labels[v1alpha1.LabelModel])
	revision, sends := objects.ModelRevision(c.Spec.EffectiveSettings(&settings.Spec), key), r.sendsTo(secret.UID)
	if r.isCurrent(sends, sent, revision) {
		return reconcile.Result{}, nil
	}
	if !sends.limiter.AllowN(r.options.Clock.Now(), 1) {
		return reconcile.Result{RequeueAfter: modelInterval}, nil
	}
	className := pod.Labels[v1alpha1.LabelSessionClass]
	if started := c.Status.CurrentClass(); started != nil {
		className = started.Name
	}
	blocker, err := r.send(ctx, c, className, sends)
	if blocker != nil {
		ctrl.LoggerFrom(ctx).Info("The changed model was not sent to the session", "reason", blocker.Message)
	}
	return reconcile.Result{}, err
}

// isCurrent reports whether a session has the model with this revision. sent is the recorded revision
// of the session's model.
func (r *modelReconciler) isCurrent(sends *modelSends, sent, revision string) bool {
	if sends.uncertain {
		return false
	}
	content, known := r.contents.Get(revision)
	return revision == sent || revision == sends.revision || known && sends.has(content.(modelContent), revision)
}

// inheritsModel reports whether settings inherit their model. A running session keeps an inherited
// model, because one change of the inherited settings would reach the sessions of many users at the
// same time.
func inheritsModel(settings *v1alpha1.UserSettings) bool {
	return settings.Spec.InheritFrom != nil && !settings.Spec.OwnsModel()
}

func (r *modelReconciler) sendsTo(secret types.UID) *modelSends {
	if sends, found := r.sends.Get(secret); found {
		return sends.(*modelSends)
	}
	sends := &modelSends{limiter: rate.NewLimiter(rate.Every(modelInterval), modelBurst)}
	r.sends.Add(secret, sends)
	return sends
}

// send sends the current model to a session, and then records the revision of the model. After a
// crash between these steps, the model is sent again. If the model cannot be sent, send returns a
// blocker.
func (r *modelReconciler) send(ctx context.Context, c *v1alpha1.Conversation, className string,
	sends *modelSends) (*lifecycle.Blocker, error) {
	settings, blocker, err := r.liveSettings(ctx, c)
	if settings == nil {
		return blocker, err
	}
	model, blocker, err := r.readModel(ctx, c.Namespace, c.Spec.EffectiveSettings(settings))
	if blocker != nil || err != nil {
		return blocker, err
	}
	content := contentOf(model)
	r.contents.Add(model.Revision, content)
	if sends.has(content, model.Revision) {
		return nil, nil
	}
	secret := &corev1.Secret{}
	if err := r.live.Get(ctx, sessionObject(c), secret); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	keys, blocker, err := r.signingKeys(ctx)
	if blocker != nil || err != nil {
		return blocker, err
	}
	// Do not send the model if the Secret may be forged: the manager encrypts the model's API key with
	// a key in the Secret, which a forger would know. If an older version of Parley started the
	// session, the Secret is not signed. Such a session gets a changed model only at its next start.
	if trusted, err := checkSecret(secret, c, keys); !trusted {
		return blockerOf(err), nil
	}
	start, err := objects.StartFromSecret(secret)
	if err != nil {
		return nil, err
	}
	if secret.Annotations[v1alpha1.AnnotationModel] == "" { // the session still has the model of its start
		sends.content = contentOf(session.ModelSettings{Model: ptr.Deref(start.Settings.LLMModel, ""),
			BaseURL: ptr.Deref(start.Settings.LLMBaseURL, ""), Key: string(secret.Data[session.LLMAPIKeyFile])})
		if sends.has(content, model.Revision) {
			return nil, nil
		}
	}
	if blocker, err := r.notAllowed(ctx, c, className, settings, start.Agent); blocker != nil || err != nil {
		return blocker, err
	}
	sent := cmp.Or(secret.Annotations[v1alpha1.AnnotationModel], secret.Labels[v1alpha1.LabelModel])
	if model.Revision == sent && !sends.uncertain {
		return nil, nil // the cache was stale
	}
	sealed, err := session.SealModel(string(secret.Data[session.KeyFile]), string(c.UID), model)
	if err != nil {
		return nil, err
	}
	sends.uncertain = true
	if err := r.upload(ctx, string(c.UID), sealed); err != nil {
		return nil, fmt.Errorf("send the changed model to the archive: %w", err)
	}
	changed := secret.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationModel, model.Revision)
	err = r.client.Patch(ctx, changed, client.MergeFromWithOptions(secret, client.MergeFromWithOptimisticLock{}))
	if err == nil {
		sends.content, sends.revision, sends.uncertain = content, model.Revision, false
	}
	return nil, client.IgnoreNotFound(err)
}

// notAllowed returns a blocker if the class or the Conversation does not allow the settings.
func (r *modelReconciler) notAllowed(ctx context.Context, c *v1alpha1.Conversation, className string,
	settings *v1alpha1.UserSettingsSpec, agent *session.Agent) (*lifecycle.Blocker, error) {
	class, blocker, err := r.classNamed(ctx, className)
	if blocker != nil || err != nil {
		return blocker, err
	}
	blocker = cmp.Or(objects.ModelNotAllowed(c, settings), class.NotAllowed(c, settings, agent))
	if blocker != nil {
		return blocker, nil
	}
	settings = c.Spec.EffectiveSettings(settings)
	models, blocker, err := r.models(ctx, class.WithDefaults(settings), class)
	return cmp.Or(blocker, class.SpendNotAllowed(settings, models, r.options.ArchiveURL)), err
}

// readModel returns the model in the settings, with its key from the API server.
func (r *modelReconciler) readModel(ctx context.Context, namespace string,
	settings *v1alpha1.UserSettingsSpec) (model session.ModelSettings, blocker *lifecycle.Blocker, err error) {
	model.Model, model.BaseURL = ptr.Deref(settings.LLMModel, ""), ptr.Deref(settings.LLMBaseURL, "")
	keySecret := &corev1.Secret{}
	if ref := settings.LLMAPIKeyRef; ref != nil {
		secrets := newSecretReader(r.live, namespace)
		value, blocker, err := secrets.value(ctx, v1alpha1.SecretReference{Path: field.NewPath("spec", "llmAPIKeyRef"),
			Ref: *ref})
		if blocker != nil || err != nil {
			return model, blocker, err
		}
		model.Key, keySecret = string(value), secrets.secrets[ref.Name]
	}
	model.Revision = objects.ModelRevision(settings, keySecret)
	return model, nil, nil
}

func contentOf(m session.ModelSettings) modelContent {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q", m.Model, m.BaseURL, m.Key))
}

// liveSettings reads the effective settings of a session from the API server. They are nil if there
// is a blocker or an error, if the UserSettings are gone, or if the session keeps an inherited
// model.
func (r *modelReconciler) liveSettings(ctx context.Context, c *v1alpha1.Conversation) (*v1alpha1.UserSettingsSpec,
	*lifecycle.Blocker, error) {
	settings, named := &v1alpha1.UserSettings{}, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}
	if err := r.live.Get(ctx, named, settings); err != nil || settings.DeletionTimestamp != nil ||
		!c.BelongsTo(settings) || inheritsModel(settings) {
		return nil, nil, client.IgnoreNotFound(err)
	}
	return effectiveSettings(ctx, r.live, settings)
}

func (r *modelReconciler) upload(ctx context.Context, uid string, sealed []byte) error {
	token, err := r.archiveToken(ctx, session.AudienceModel, uid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, modelTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(r.options.ArchiveURL, "/")+
		session.ArchiveRoot+uid+session.ArchiveModel, bytes.NewReader(sealed))
	if err != nil {
		return err
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := r.turns.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<10)) // lets the connection be reused
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the archive answered %s", response.Status)
	}
	return nil
}
