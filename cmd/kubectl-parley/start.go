package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

type start struct {
	facadeFlags
	waitFlags
	task
	force bool
}

// task holds the flags that describe a new session.
type task struct {
	message, repository, branch, provider, class, agent, model string
	oneShot                                                    bool
}

func newStart(p *plugin) *cobra.Command {
	s := &start{}
	cmd := p.named(&cobra.Command{
		Use:   "start NAME",
		Short: "Start a session: create, resume or restart it",
		Long: `Start a session and wait until it runs.

If the Conversation NAME does not exist, the command creates it with the task in --message and the
other flags. Otherwise it resumes a suspended session, and restarts an ended session.

With a login or $PARLEY_TOKEN, the command uses the facade and needs no rights in Kubernetes.`,
		Example: `  kubectl parley start fix-login --repository acme/site --message 'Fix the login form'
  kubectl parley start fix-login`,
	}, s.run)
	f := cmd.Flags()
	f.StringVarP(&s.message, "message", "m", "", "The first message to the agent.")
	f.StringVarP(&s.repository, "repository", "r", "", "The repository to work on: owner/name, or a URL.")
	f.StringVarP(&s.branch, "branch", "b", "", "The branch of the repository. Default: its default branch.")
	f.StringVar(&s.provider, "git-provider", "", "The provider of the repository: github, gitlab, bitbucket or "+
		"enterprise_sso.")
	s.addPersonFlags(cmd)
	cmd.Flags().Lookup("settings").Usage = "The user's UserSettings. With a login, write NAMESPACE/NAME; without a " +
		"login, write only the name. Default: the settings of the login, or the UserSettings named default."
	f.StringVar(&s.class, "class", "", "The name of the SessionClass. Default: that of the UserSettings.")
	f.StringVar(&s.agent, "agent", "", "The agent to run. Default: that of the UserSettings.")
	f.StringVar(&s.model, "model", "", "The model of the agent, as provider/model. Default: that of the UserSettings.")
	f.BoolVar(&s.oneShot, "one-shot", false, "End the session after the agent's first turn.")
	f.BoolVar(&s.force, "force", false, "Make the change even if a GitOps tool manages the field.")
	s.waitFlags.addFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("settings", p.complete(&v1alpha1.UserSettingsList{}))
	return cmd
}

func (s *start) run(ctx context.Context, c *cluster, name string) error {
	user, err := s.person(newProgress(c.ErrOut).say)
	if err != nil {
		return err
	}
	if user != nil {
		return s.runAs(ctx, c, user, name)
	}
	conv, err := c.conversation(ctx, name)
	described := s.task != (task{}) || s.settings != ""
	switch {
	case apierrors.IsNotFound(err) && described:
		conv = s.build(c.namespace, name, s.settings)
		err = c.Create(ctx, conv)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("no Conversation %s in namespace %s; use --message or --repository to create it", name,
			c.namespace)
	case err == nil && described:
		return fmt.Errorf("the Conversation %s already exists, and its task cannot change: choose another name, or "+
			"omit the flags of the task, such as --message and --repository", name)
	case err == nil:
		err = s.restart(ctx, c, conv)
	}
	if err != nil || !s.wait {
		return err
	}
	return s.await(ctx, c, conv)
}

func (a task) build(namespace, name, settings string) *v1alpha1.Conversation {
	conv := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	conv.Spec = v1alpha1.ConversationSpec{
		UserSettingsName: settings, Repository: optional(a.repository), SelectedBranch: optional(a.branch),
		InitialUserMsg: optional(a.message), Agent: optional(a.agent), LLMModel: optional(a.model),
		SessionClassName: optional(a.class), GitProvider: (*v1alpha1.GitProvider)(optional(a.provider)), OneShot: a.oneShot,
	}
	return conv
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// restart resumes or restarts an existing session, depending on its state.
func (s *start) restart(ctx context.Context, c *cluster, conv *v1alpha1.Conversation) error {
	if conv.Spec.Suspend {
		if err := changeSpec(ctx, c, conv, "suspend", s.force,
			func(spec *v1alpha1.ConversationSpec) { spec.Suspend = false }); err != nil {
			return err
		}
	}
	// If the session stopped because of spec.suspend, it resumes when suspend becomes false. If it
	// ended for another reason, it needs a new restartAt, even if it was suspended after its end.
	if conv.Status.State == v1alpha1.StateStopped && conv.Status.Reason != v1alpha1.ReasonSuspended {
		at := conv.NextRestart(time.Now())
		return changeSpec(ctx, c, conv, "restartAt", s.force,
			func(spec *v1alpha1.ConversationSpec) { spec.RestartAt = &at })
	}
	return nil
}

// await waits until the session runs or fails to start.
func (s *start) await(ctx context.Context, c *cluster, requested *v1alpha1.Conversation) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	last, p := requested, newProgress(c.ErrOut)
	err := c.follow(ctx, p, requested.Name, func(conv *v1alpha1.Conversation) (bool, error) {
		last = conv
		if at := conv.Spec.RestartAt; restartPending(conv) {
			p.say("restarts when the operator's clock shows %s; the operator's clock is behind the local clock",
				at.UTC().Format(time.RFC3339))
		}
		return hasStarted(conv, requested.Generation)
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w\n%s", err, pendingStart(last))
	}
	if err != nil {
		return fmt.Errorf("%s is not running: %w", requested.Name, err)
	}
	fmt.Fprintf(c.Out, "conversation.parley.dev/%s started\n", requested.Name)
	return nil
}

// pendingStart describes a start that is still in progress when the command gives up.
func pendingStart(conv *v1alpha1.Conversation) string {
	return withHint("Still waiting: "+summary(conv), conv) +
		"\nThe Conversation remains; its session starts as soon as it can."
}

// restartPending reports whether the operator has seen the restart time, but has not restarted the
// session yet. The operator waits if the restart time is in the future by its own clock.
func restartPending(conv *v1alpha1.Conversation) bool {
	at := conv.Spec.RestartAt
	return observed(conv) && conv.Status.State == v1alpha1.StateStopped && at != nil && !at.Equal(conv.Status.RestartedAt)
}

// hasStarted reports whether the session of this generation runs, or ended normally. It fails if
// the session is blocked until a user acts.
func hasStarted(conv *v1alpha1.Conversation, generation int64) (bool, error) {
	at := conv.Spec.RestartAt
	switch {
	case conv.Status.ObservedGeneration < generation, at != nil && !at.Equal(conv.Status.RestartedAt):
		return false, nil
	case stalled(conv), conv.Status.Reason == v1alpha1.ReasonSuspended:
		return false, problemOf(conv)
	}
	return conv.Status.State != v1alpha1.StateStarting, nil
}

func problemOf(conv *v1alpha1.Conversation) error {
	return errors.New(withHint(conv.Status.Reason+": "+conv.Status.Message, conv))
}

func withHint(text string, conv *v1alpha1.Conversation) string {
	return strings.TrimSuffix(text+"\n"+hintFor(conv), "\n")
}
