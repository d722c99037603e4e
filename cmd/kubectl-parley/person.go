package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// conversationPoll is the interval between two requests for the state of a conversation.
const conversationPoll = time.Second

// pathOf returns the path of a conversation, or of an action on it.
func pathOf(conversation, action string) string {
	return "/api/conversations/" + url.PathEscape(conversation) + action
}

// runAs starts a session through the facade, as a person.
func (s *start) runAs(ctx context.Context, c *cluster, user *facadeUser, name string) (err error) {
	switch {
	case s.class != "", s.force:
		return errors.New("--class and --force need Kubernetes: unset --facade and $PARLEY_FACADE")
	case s.task != (task{}):
		err = user.change(ctx, "/api/conversations", rest.ConversationRequest{ConversationID: &name, OneShot: &s.oneShot,
			Repository: optional(s.repository), SelectedBranch: optional(s.branch), GitProvider: optional(s.provider),
			InitialUserMsg: optional(s.message), Agent: optional(s.agent), LLMModel: optional(s.model)})
	default:
		err = user.change(ctx, pathOf(name, "/start"), nil)
	}
	if err != nil || !s.wait {
		return err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if err := user.await(ctx, c, name, startedAs); err != nil {
		return fmt.Errorf("%s is not running: %w", name, err)
	}
	fmt.Fprintf(c.Out, "conversation.parley.dev/%s started\n", name)
	return nil
}

// runAs stops a session through the facade, as a person.
func (s *stop) runAs(ctx context.Context, c *cluster, user *facadeUser, name string) error {
	if s.force {
		return errors.New("--force needs Kubernetes: unset --facade and $PARLEY_FACADE")
	}
	if err := user.change(ctx, pathOf(name, "/stop"), nil); err != nil || !s.wait {
		return err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	stopped := func(now *rest.Conversation) (bool, error) { return now.Status == string(v1alpha1.StateStopped), nil }
	if err := user.await(ctx, c, name, stopped); err != nil {
		return fmt.Errorf("%s has not stopped: %w", name, err)
	}
	fmt.Fprintf(c.Out, "conversation.parley.dev/%s stopped\n", name)
	return nil
}

// change sends a request that changes something, and ignores the content of the response.
func (p *facadeUser) change(ctx context.Context, path string, body any) error {
	response, err := p.do(ctx, http.MethodPost, path, http.Header{"Content-Type": {"application/json"}}, body)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (p *facadeUser) conversation(ctx context.Context, name string) (*rest.Conversation, error) {
	conversation := &rest.Conversation{}
	err := p.read(ctx, http.MethodGet, pathOf(name, ""), conversation)
	if err == nil && conversation.ConversationID == "" { // the response is null
		err = fmt.Errorf("you have no conversation %s", name)
	}
	return conversation, err
}

// startedAs reports whether a start is over: the session runs, or has already ended. It returns an
// error if the session does not run and needs attention.
func startedAs(now *rest.Conversation) (bool, error) {
	if now.Status != string(v1alpha1.StateRunning) && now.NeedsAttention {
		return false, errors.New(summaryOf(now))
	}
	return now.Status != string(v1alpha1.StateStarting), nil
}

// await prints the progress of a conversation until done() returns true or an error.
func (p *facadeUser) await(ctx context.Context, c *cluster, name string,
	done func(*rest.Conversation) (bool, error)) error {
	steps := newProgress(c.ErrOut)
	for {
		now, err := p.conversation(ctx, name)
		if err != nil {
			return err
		}
		steps.say("%s", summaryOf(now))
		if is, err := done(now); is || err != nil {
			return err
		}
		select {
		case <-time.After(conversationPoll):
		case <-ctx.Done():
			return fmt.Errorf("stopped waiting: %w", context.Cause(ctx))
		}
	}
}

func summaryOf(c *rest.Conversation) string {
	line := strings.TrimSpace(c.Status + "  " + ptr.Deref(c.Reason, ""))
	if message := ptr.Deref(c.Message, ""); message != "" {
		line += ": " + message
	}
	if c.Turn != nil {
		line += fmt.Sprintf("; turn %s: %s: %s", c.Turn.State, c.Turn.Reason, c.Turn.Message)
	}
	return line
}

// status prints one line for a conversation, or for each conversation of the person's settings.
func (p *facadeUser) status(ctx context.Context, c *cluster, name string) error {
	columns := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	row := func(conversation *rest.Conversation) {
		fmt.Fprintf(columns, "%s\t%s\n", conversation.ConversationID, oneLine(printable(summaryOf(conversation))))
	}
	if name != "" {
		one, err := p.conversation(ctx, name)
		if err != nil {
			return err
		}
		row(one)
		return columns.Flush()
	}
	for next := ""; ; {
		var page rest.ConversationPage
		if err := p.read(ctx, http.MethodGet, "/api/conversations?limit=100&page_id="+url.QueryEscape(next),
			&page); err != nil {
			return err
		}
		for i := range page.Results {
			row(&page.Results[i])
		}
		if page.NextPageID == nil || *page.NextPageID == next {
			return columns.Flush()
		}
		next = *page.NextPageID
	}
}
