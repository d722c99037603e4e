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

// start is `kubectl parley start`.
type start struct {
	waiting
	asked
	force bool
}

// asked is what a new session is asked to do.
type asked struct {
	message, repository, branch, provider, settings, class string
	oneShot                                                bool
}

func newStart(p *plugin) *cobra.Command {
	s := &start{}
	cmd := p.named(&cobra.Command{
		Use:   "start NAME",
		Short: "Start a session: a new one, a suspended one, or one that is over",
		Long: `Start a session and wait until it runs.

A Conversation that exists is resumed if it is suspended, and started again if it is over.
One that does not exist is created if a flag says what it shall do.`,
		Example: `  kubectl parley start fix-login --repository acme/site --message 'Fix the login form'
  kubectl parley start fix-login`,
	}, s.run)
	f := cmd.Flags()
	f.StringVarP(&s.message, "message", "m", "", "The first message to the agent.")
	f.StringVarP(&s.repository, "repository", "r", "", "The repository to work on: owner/name, or a URL.")
	f.StringVarP(&s.branch, "branch", "b", "", "The branch of the repository.")
	f.StringVar(&s.provider, "git-provider", "", "The provider of the repository: github, gitlab, bitbucket or "+
		"enterprise_sso.")
	f.StringVar(&s.settings, "settings", "", "The UserSettings whose session it is. Default: the one called default.")
	f.StringVar(&s.class, "class", "", "The SessionClass.")
	f.BoolVar(&s.oneShot, "one-shot", false, "End the session when the agent is done with the message.")
	f.BoolVar(&s.force, "force", false, "Change a field that a GitOps tool keeps.")
	s.addFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("settings", p.complete(&v1alpha1.UserSettingsList{}))
	return cmd
}

func (s *start) run(ctx context.Context, c *cluster, name string) error {
	conv, err := c.conversation(ctx, name)
	switch {
	case apierrors.IsNotFound(err) && s.asked != (asked{}):
		conv = s.build(c.namespace, name)
		err = c.Create(ctx, conv)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no Conversation %s in namespace %s; --message or --repository creates one", name,
			c.namespace)
	case err == nil && s.asked != (asked{}):
		return fmt.Errorf("the Conversation %s exists, and what it was asked to do cannot change: choose another name, or "+
			"start it without these flags", name)
	case err == nil:
		err = s.again(ctx, c, conv)
	}
	if err != nil || !s.wait {
		return err
	}
	return s.await(ctx, c, conv)
}

func (a asked) build(namespace, name string) *v1alpha1.Conversation {
	conv := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	conv.Spec = v1alpha1.ConversationSpec{
		UserSettingsName: a.settings, Repository: said(a.repository), SelectedBranch: said(a.branch),
		InitialUserMsg:   said(a.message),
		SessionClassName: said(a.class), GitProvider: (*v1alpha1.GitProvider)(said(a.provider)), OneShot: a.oneShot,
	}
	return conv
}

// said is a flag's value; nil if it has none.
func said(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// again starts a session that exists, in the way that its state asks for.
func (s *start) again(ctx context.Context, c *cluster, conv *v1alpha1.Conversation) error {
	if conv.Spec.Suspend {
		if err := changeSpec(ctx, c, conv, "suspend", s.force,
			func(spec *v1alpha1.ConversationSpec) { spec.Suspend = false }); err != nil {
			return err
		}
	}
	// One that is over starts again only when it is asked to, also after it was suspended
	// meanwhile.
	if conv.Status.State == v1alpha1.StateStopped && conv.Status.Reason != v1alpha1.ReasonSuspended {
		at := conv.NextRestart(time.Now())
		return changeSpec(ctx, c, conv, "restartAt", s.force,
			func(spec *v1alpha1.ConversationSpec) { spec.RestartAt = &at })
	}
	return nil
}

// await waits until the session runs, or cannot.
func (s *start) await(ctx context.Context, c *cluster, asked *v1alpha1.Conversation) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	last, p := asked, newProgress(c.ErrOut)
	err := c.follow(ctx, p, asked.Name, func(conv *v1alpha1.Conversation) (bool, error) {
		last = conv
		if at := conv.Spec.RestartAt; isLater(conv) {
			p.say("it starts at %s by the operator's clock, which this machine's is ahead of", at.UTC().Format(time.RFC3339))
		}
		return hasStarted(conv, asked.Generation)
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w\n%s", err, unfinished(last))
	}
	if err != nil {
		return fmt.Errorf("%s does not run: %w", asked.Name, err)
	}
	fmt.Fprintf(c.Out, "conversation.parley.dev/%s started\n", asked.Name)
	return nil
}

// unfinished is what a start waits for that nobody waits for any more.
func unfinished(conv *v1alpha1.Conversation) string {
	return withHint("It waits: "+standing(conv), conv) +
		"\nThe Conversation stays, and its session starts as soon as it can."
}

// isLater: the operator has seen when the session is to start again, and that it is not yet time.
func isLater(conv *v1alpha1.Conversation) bool {
	at := conv.Spec.RestartAt
	return observed(conv) && conv.Status.State == v1alpha1.StateStopped && at != nil && !at.Equal(conv.Status.RestartedAt)
}

// hasStarted: the session of this generation runs, or came to an end as it should. It fails if it
// needs somebody's help.
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

// problemOf a session that does not get on, and what to do about it.
func problemOf(conv *v1alpha1.Conversation) error {
	return errors.New(withHint(conv.Status.Reason+": "+conv.Status.Message, conv))
}

// withHint adds a line that says what to do about a session, where there is something to do.
func withHint(text string, conv *v1alpha1.Conversation) string {
	return strings.TrimSuffix(text+"\n"+hintFor(conv), "\n")
}
