package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func newStatus(p *plugin) *cobra.Command {
	var events int
	f := &facadeFlags{}
	cmd := p.named(&cobra.Command{
		Use:   "status [NAME]",
		Short: "Show the state of a session, or of all sessions in one line each",
		Long: `Show the state of a session, its reason, and the next step to take; then its settings, class, pod,
workspace, conditions and recent events. The command does not read values of Secrets.

With a login or $PARLEY_TOKEN, the command asks the facade and shows one line per session.`,
		Args: cobra.MaximumNArgs(1),
	}, func(ctx context.Context, c *cluster, name string) error {
		user, err := f.person(newProgress(c.ErrOut).say)
		switch {
		case err != nil:
			return err
		case user != nil:
			return user.status(ctx, c, name)
		case name == "":
			return c.showAll(ctx)
		}
		found, err := c.find(ctx, name)
		if err != nil {
			return err
		}
		found.events = lastOf(found.events, events)
		_, err = fmt.Fprint(c.Out, printable(found.tree(time.Now())))
		return err
	})
	cmd.Flags().IntVar(&events, "events", 8, "The number of recent events to show.")
	f.addPersonFlags(cmd)
	return cmd
}

func (c *cluster) showAll(ctx context.Context) error {
	var list v1alpha1.ConversationList
	if err := c.List(ctx, &list, client.InNamespace(c.namespace)); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		fmt.Fprintf(c.ErrOut, "No Conversations in namespace %s.\n", c.namespace)
	}
	table := &strings.Builder{}
	columns := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	for i := range list.Items {
		fmt.Fprintln(columns, strings.Join(headline(&list.Items[i], time.Now()), "\t"))
	}
	if err := columns.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(c.Out, printable(strings.TrimRight(line, " \n")))
	}
	return nil
}

// findings are the objects of a session. An object is nil if it does not exist, or if the user has
// no permission to read it.
type findings struct {
	conversation *v1alpha1.Conversation
	settings     *v1alpha1.UserSettings
	class        *v1alpha1.SessionClass
	pod          *corev1.Pod
	claim        *corev1.PersistentVolumeClaim
	secret       *metav1.PartialObjectMetadata
	events       []corev1.Event
	// forbidden contains the kinds that the user has no permission to read.
	forbidden map[string]bool
}

// find reads the objects of a session. It skips objects that the user has no permission to read.
func (c *cluster) find(ctx context.Context, name string) (*findings, error) {
	conv, err := c.conversation(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &findings{conversation: conv, forbidden: map[string]bool{}}
	// Read only the metadata of the Secret, because its keys are not needed.
	secret := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
	if err := errors.Join(
		lookUp(ctx, c, f, &f.settings, "UserSettings", conv.Spec.UserSettingsName, &v1alpha1.UserSettings{}),
		lookUp(ctx, c, f, &f.pod, "Pod", conv.PodName(), &corev1.Pod{}),
		lookUp(ctx, c, f, &f.claim, "PersistentVolumeClaim", cmp.Or(conv.Status.WorkspaceClaimName, name+"-workspace"),
			&corev1.PersistentVolumeClaim{}),
		lookUp(ctx, c, f, &f.secret, "Secret", v1alpha1.SessionName(name), secret),
	); err != nil {
		return nil, err
	}
	if err := lookUp(ctx, c, f, &f.class, "SessionClass", f.className(), &v1alpha1.SessionClass{}); err != nil {
		return nil, err
	}
	return f, c.findEvents(ctx, f)
}

// lookUp reads an object into o. It sets *found to o if the object exists and the user has
// permission to read it.
func lookUp[T client.Object](ctx context.Context, c *cluster, f *findings, found *T, kind, name string, o T) error {
	switch err := c.Get(ctx, c.key(name), o); {
	case err == nil:
		*found = o
	case apierrors.IsForbidden(err):
		f.forbidden[kind] = true
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get %s %s: %w", kind, name, err)
	}
	return nil
}

// className returns the class that the session has, or that it would get if it started now.
func (f *findings) className() string {
	switch {
	case f.pod != nil && f.pod.Labels[v1alpha1.LabelSessionClass] != "":
		return f.pod.Labels[v1alpha1.LabelSessionClass]
	case f.conversation.Status.SessionClass != nil:
		return f.conversation.Status.SessionClass.Name
	case f.conversation.Spec.SessionClassName != nil:
		return *f.conversation.Spec.SessionClassName
	case f.settings != nil && f.settings.Spec.SessionClassName != nil:
		return *f.settings.Spec.SessionClassName
	}
	return v1alpha1.DefaultSessionClass
}

// findEvents collects the events of the session's objects, oldest first.
func (c *cluster) findEvents(ctx context.Context, f *findings) error {
	// The UID excludes events of earlier objects with the same name. The UID of a deleted pod is
	// not known: its events are included if they are newer than the Conversation.
	regarding := map[string]metav1.Object{"Conversation": f.conversation,
		"Pod": &metav1.ObjectMeta{Name: f.conversation.PodName()}}
	if f.pod != nil {
		regarding["Pod"] = f.pod
	}
	if f.settings != nil {
		regarding["UserSettings"] = f.settings
	}
	if f.claim != nil {
		regarding["PersistentVolumeClaim"] = f.claim
	}
	for kind, object := range regarding {
		selector := fields.Set{"involvedObject.kind": kind, "involvedObject.name": object.GetName()}
		if uid := object.GetUID(); uid != "" {
			selector["involvedObject.uid"] = string(uid)
		}
		var list corev1.EventList
		err := c.List(ctx, &list, client.InNamespace(c.namespace),
			client.MatchingFieldsSelector{Selector: selector.AsSelector()})
		if apierrors.IsForbidden(err) {
			f.forbidden["Event"] = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("list events: %w", err)
		}
		f.events = append(f.events, slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "Pod" && eventTime(e).Before(f.conversation.CreationTimestamp.Time)
		})...)
	}
	slices.SortStableFunc(f.events, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	return nil
}

// eventTime returns when an event last occurred. The two Event APIs record this time in different
// fields.
func eventTime(e corev1.Event) time.Time {
	times := []time.Time{e.CreationTimestamp.Time, e.EventTime.Time, e.LastTimestamp.Time}
	if e.Series != nil {
		times = append(times, e.Series.LastObservedTime.Time)
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

func lastOf[T any](all []T, n int) []T { return all[max(0, len(all)-max(0, n)):] }
