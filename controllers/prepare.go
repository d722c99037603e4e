package controllers

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
	"github.com/parley-dev/parley/controllers/slimcache"
)

// prepared holds the values that are needed to start a session, or the reason why the session must
// wait.
type prepared struct {
	objects.Start
	// unready names a missing or unusable object that the session needs. If this object is a Secret or
	// a ConfigMap, missing is its name.
	unready *lifecycle.Blocker
	missing string
	// blocked says why the session must not start, for example because its class does not allow its
	// settings.
	blocked *lifecycle.Blocker
	// paused is set if it is too early for a retry: within the last minRetryDelay, the session was
	// refused, or another refused session of the user was retried.
	paused bool
	// waits is set while maxStarts other sessions of the user start.
	waits bool
	// retryIn is the remaining delay after failed starts; zero if there is none.
	retryIn time.Duration
}

// isPostponed reports whether the session must not start in this reconcile.
func (p *prepared) isPostponed() bool { return p != nil && (p.waits || p.retryIn > 0) }

// prepare reads the values that are needed to start a session. An attempt that replaces a lost pod
// reuses the values of the previous attempt. Any other attempt uses the current settings.
func (g *gatherer) prepare(ctx context.Context, o gathered) (*prepared, error) {
	c := o.Conversation
	if lifecycle.Attempt(c.Status) > lifecycle.FirstAttempt(c.Status) {
		if start, err := g.prepareReplacement(ctx, c); start != nil || err != nil {
			return start, err
		}
	}
	// Bypass the cache, because a user who saves settings and then starts a session expects the
	// new settings.
	settings := &v1alpha1.UserSettings{}
	err := g.live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}, settings)
	switch {
	case err == nil && !c.BelongsTo(settings):
		return &prepared{unready: lifecycle.NewBlocker(v1alpha1.ReasonSettingsNotReady, "UserSettings %s %s; create a new "+
			"Conversation", c.Spec.UserSettingsName, foreignSettings(c))}, nil
	case apierrors.IsNotFound(err) || err == nil && settings.DeletionTimestamp != nil:
		return &prepared{unready: lifecycle.NewBlocker(v1alpha1.ReasonSettingsNotReady, "UserSettings %s do not exist",
			c.Spec.UserSettingsName)}, nil
	case err != nil:
		return nil, fmt.Errorf("read UserSettings: %w", err)
	}
	effective, unready, err := effectiveSettings(ctx, g.live, settings)
	if unready != nil {
		return &prepared{unready: lifecycle.NewBlocker(v1alpha1.ReasonSettingsNotReady, "UserSettings %s: %s",
			settings.Name, unready.Message)}, nil
	}
	if err != nil {
		return nil, err
	}
	return g.prepareNew(ctx, o, settings, effective)
}

// foreignSettings says why a Conversation does not belong to the UserSettings that it names.
func foreignSettings(c *v1alpha1.Conversation) string {
	if c.Status.Owner != "" || c.Status.SettingsUID == "" {
		return "have another owner now, but the Conversation belongs to the former owner"
	}
	return "were recreated (their UID changed): the Conversation belongs to the deleted UserSettings"
}

// prepareReplacement returns the values with which the previous attempt started. It returns nil if
// these values are gone.
func (g *gatherer) prepareReplacement(ctx context.Context, c *v1alpha1.Conversation) (*prepared, error) {
	existing := &corev1.Secret{}
	err := g.live.Get(ctx, sessionObject(c), existing)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the session's Secret: %w", err)
	}
	keys, unready, err := g.signingKeys(ctx)
	if unready != nil || err != nil {
		return &prepared{unready: unready}, err
	}
	trusted, err := checkSecret(existing, c, keys)
	if blocked := blockerOf(err); blocked != nil {
		return &prepared{blocked: blocked}, nil
	}
	if !trusted {
		return nil, err
	}
	before, err := objects.StartFromSecret(existing)
	if err != nil {
		return nil, err
	}
	start := &prepared{Start: *before}
	if err := g.setClassAndWorkspace(ctx, c, start); err != nil || start.unready != nil || start.blocked != nil {
		return start, err
	}
	if g.options.ArchiveURL != "" {
		if err := start.AddAttemptToken(c, keys.tokens, g.options.Clock.Now()); err != nil {
			return start, err
		}
	}
	if start.Workspace != v1alpha1.WorkspaceScratch {
		return start, nil
	}
	return start, start.MoveToScratch(c.UID, keys.snapshots, keys.previousSnapshots)
}

// setClassAndWorkspace sets the class and the kind of workspace of a session that starts. After a
// user starts the session, all attempts use the class of the first attempt. An administrator may
// have changed this class since then, so each attempt checks whether the class still allows the
// requested settings.
func (g *gatherer) setClassAndWorkspace(ctx context.Context, c *v1alpha1.Conversation, start *prepared) (err error) {
	name := objects.ClassName(c, start.Requested)
	if started := c.Status.CurrentClass(); started != nil {
		name = started.Name
	}
	if start.Class, start.unready, err = g.classNamed(ctx, name); start.unready != nil || err != nil {
		return err
	}
	start.blocked = start.Class.NotAllowed(c, start.Requested, start.Agent)
	start.Workspace, err = g.workspaceKind(ctx, c, start.Class)
	return err
}

// prepareNew returns the values to start a session: the effective settings of the user, with the
// agent and the model of the Conversation.
func (g *gatherer) prepareNew(ctx context.Context, o gathered, user *v1alpha1.UserSettings,
	settings *v1alpha1.UserSettingsSpec) (*prepared, error) {
	c := o.Conversation
	if blocked := objects.ModelNotAllowed(c, settings); blocked != nil {
		return &prepared{blocked: blocked}, nil
	}
	settings = c.Spec.EffectiveSettings(settings)
	agent, unready, err := g.agent(ctx, settings)
	if unready != nil || err != nil {
		return &prepared{unready: unready}, err
	}
	start := &prepared{Start: objects.Start{Settings: settings, Requested: settings, Agent: agent}}
	if err := g.setClassAndWorkspace(ctx, c, start); err != nil || start.unready != nil || start.blocked != nil {
		return start, err
	}
	start.Settings = start.Class.WithDefaults(settings)
	complete, err := g.complete(ctx, c)
	if err != nil {
		return nil, err
	}
	in := objects.SecretInputs{Key: rand.Text() + rand.Text()} // each text has 130 random bits
	doc := &in.Document
	*doc, in.Files = objects.Document(complete, start.Settings, start.Class.Bounds().For(&c.Spec),
		g.options.SearchMCPURL)
	doc.Agent, doc.CABundle = agent, start.Class.Spec.CABundle()
	doc.Requested = session.Requested{MaxIterations: settings.MaxIterations,
		MaxBudgetPerTask: settings.MaxBudgetPerTask, ExposeGitTokenToAgent: settings.ExposeGitTokenToAgent}
	if agent != nil {
		doc.Models, start.unready, err = g.models(ctx, start.Settings, start.Class)
		if start.unready != nil || err != nil {
			return start, err
		}
	}
	start.blocked = start.Class.SpendNotAllowed(settings, doc.Models, g.options.ArchiveURL)
	if in.Spend, err = start.Class.SpendClaims(user); start.blocked != nil || err != nil {
		return start, err
	}
	keys, unready, err := g.signingKeys(ctx)
	if start.unready = unready; unready != nil || err != nil {
		return start, err
	}
	in.SigningKeys, in.SnapshotSecrets = keys.tokens, [][]byte{keys.snapshots, keys.previousSnapshots}
	in.Authority = keys.authority
	doc.Scratch, doc.ArchiveURL = start.Workspace == v1alpha1.WorkspaceScratch, g.options.ArchiveURL
	if g.options.ArchiveCertificate {
		doc.ArchiveCA = string(keys.authorities)
	}
	doc.PublicKey = session.PublicHalf(keys.tokens[0])
	if len(keys.tokens) > 1 {
		doc.PreviousPublicKey = session.PublicHalf(keys.tokens[1])
	}
	inputs := newInputReader(g.live, c.Namespace)
	start.missing, start.unready, err = inputs.firstMissing(ctx, in.Files, c.ConfigMapReferences(), o.missing)
	if start.unready != nil || err != nil {
		return start, err
	}
	in.Sources = inputs.secrets.secrets
	start.Secret, err = objects.Secret(c, in, o.Now)
	return start, err
}

// complete returns the Conversation with its complete texts. If the cache truncated them, it reads
// the Conversation from the API server.
func (g *gatherer) complete(ctx context.Context, c *v1alpha1.Conversation) (*v1alpha1.Conversation, error) {
	if !slimcache.Truncated(c) {
		return c, nil
	}
	complete := &v1alpha1.Conversation{}
	if err := g.live.Get(ctx, client.ObjectKeyFromObject(c), complete); err != nil {
		return nil, fmt.Errorf("read Conversation: %w", err)
	}
	if complete.UID != c.UID {
		return nil, fmt.Errorf("read Conversation: it was recreated (its UID changed)")
	}
	return complete, nil
}
