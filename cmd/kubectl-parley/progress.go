package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// progress prints the steps of a session to standard error, with the elapsed time.
type progress struct {
	out   io.Writer
	began time.Time
	mu    sync.Mutex // guards last and out, which several goroutines use
	last  string
}

func newProgress(out io.Writer) *progress { return &progress{out: out, began: time.Now()} }

func (p *progress) say(format string, args ...any) {
	line := printable(fmt.Sprintf(format, args...))
	p.mu.Lock()
	defer p.mu.Unlock()
	if line == p.last {
		return
	}
	p.last = line
	fmt.Fprintf(p.out, "%5s  %s\n", age(time.Since(p.began)), line)
}

func (p *progress) show(c *v1alpha1.Conversation) {
	p.say("%s", summary(c))
}

// noReport describes a session whose status the operator has not written yet. If a start has no
// problems, the operator writes the first status only when the session runs.
const noReport = "no progress reported yet"

func summary(c *v1alpha1.Conversation) string {
	switch {
	case c.Status.ObservedGeneration < 0:
		return string(c.Status.State) + "  " + noReport
	case !observed(c):
		return "not processed by the operator yet"
	}
	line := fmt.Sprintf("%s  %s", c.Status.State, c.Status.Reason)
	if c.Status.Message != "" {
		line += ": " + c.Status.Message
	}
	if turn := c.Status.Turn; turn != nil {
		line += fmt.Sprintf("; turn %s: %s: %s", turn.State, turn.Reason, turn.Message)
	}
	return line
}

// observed reports whether the operator has seen the current generation.
func observed(c *v1alpha1.Conversation) bool { return c.Status.ObservedGeneration >= c.Generation }

func stalled(c *v1alpha1.Conversation) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionStalled)
}

var errDeleted = errors.New("the Conversation was deleted")

// follow watches a Conversation and prints its progress until done() returns true or an
// error.
func (c *cluster) follow(ctx context.Context, p *progress, name string, done func(*v1alpha1.Conversation) (bool,
	error)) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: c.namespace, FieldSelector: selector, Raw: &o}
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &v1alpha1.ConversationList{}
			return list, c.List(ctx, list, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &v1alpha1.ConversationList{}, options(o))
		},
	}
	_, err := watchtools.UntilWithSync(ctx, source, &v1alpha1.Conversation{}, nil, func(event watch.Event) (bool, error) {
		conv, ok := event.Object.(*v1alpha1.Conversation)
		switch {
		case !ok:
			return false, nil
		case event.Type == watch.Deleted:
			return false, errDeleted
		}
		p.show(conv)
		return done(conv)
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("stopped waiting: %w", context.Cause(ctx))
	}
	return err
}

// interrupted reports whether the user pressed Ctrl-C, which is the normal end of a command that
// follows a session.
func interrupted(ctx context.Context) bool { return ctx.Err() != nil }
