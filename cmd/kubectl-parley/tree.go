package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

type node struct {
	text     string
	children []node
}

func line(format string, args ...any) node { return node{text: fmt.Sprintf(format, args...)} }

func (n *node) add(format string, args ...any) {
	n.children = append(n.children, line(format, args...))
}

func (n node) write(out *strings.Builder, indent string) {
	for i, child := range n.children {
		branch, below := "├─ ", "│  "
		if i == len(n.children)-1 {
			branch, below = "└─ ", "   "
		}
		fmt.Fprintf(out, "%s%s%s\n", indent, branch, child.text)
		child.write(out, indent+below)
	}
}

// These marks before a line show the condition of an object.
const (
	markOK      = "✓"
	markPending = "…"
	markFailed  = "✗" // a user must act
)

func mark(ok bool) string {
	if ok {
		return markOK
	}
	return markFailed
}

// headline returns the columns of a session's first line: name, state, reason, turn, duration and
// remark. A column without a value is empty.
func headline(c *v1alpha1.Conversation, now time.Time) []string {
	sign, at := markPending, c.Status.StartTime
	switch {
	case stalled(c):
		sign = markFailed
	case c.CurrentTurn() != nil && c.Status.Turn.State == v1alpha1.TurnNeedsApproval:
	case c.CurrentTurn() != nil:
		sign = markFailed
	case meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady):
		sign = markOK
	}
	switch c.Status.State {
	case v1alpha1.StateRunning:
		at = c.Status.RunningTime
	case v1alpha1.StateStopped:
		at = c.Status.StopTime
	}
	turn, duration, remark := "", "", ""
	if c.Status.Turn != nil {
		turn = fmt.Sprintf("%s: %s", c.Status.Turn.State, c.Status.Turn.Reason)
	}
	if at != nil {
		duration = fmt.Sprintf("(%s)", since(*at, now))
	}
	switch {
	case c.Status.ObservedGeneration < 0:
		remark = noReport
	case !observed(c):
		remark = "not processed by the operator yet"
	}
	return []string{sign + " " + c.Name, string(c.Status.State), c.Status.Reason, turn, duration, remark}
}

// tree describes a session: its state, reason and advice first, then its objects.
func (f *findings) tree(now time.Time) string {
	c := f.conversation
	out := &strings.Builder{}
	columns := slices.DeleteFunc(headline(c, now), func(text string) bool { return text == "" })
	fmt.Fprintln(out, strings.Join(columns, "  "))
	if c.Status.Message != "" {
		fmt.Fprintf(out, "  %s\n", oneLine(c.Status.Message))
	}
	if turn := c.Status.Turn; turn != nil && turn.Message != "" {
		fmt.Fprintf(out, "  %s\n", oneLine(turn.Message))
	}
	// An observed generation below 0 means that the operator has not written the status yet. The
	// hint then says that the operator is perhaps not running. Omit this hint if the pod exists,
	// because the operator has created it.
	omitHint := c.Status.ObservedGeneration < 0 && f.pod != nil
	if hint := hintFor(c); hint != "" && !omitHint {
		fmt.Fprintf(out, "  → %s\n", hint)
	}
	nodes := []node{f.settingsNode(), f.classNode(), f.podNode(now), f.workspaceNode(), f.secretNode(), f.attemptsNode(),
		f.resultNode(), f.conditionsNode(now), f.eventsNode(now)}
	node{children: slices.DeleteFunc(nodes, func(n node) bool { return n.text == "" })}.write(out, "")
	return out.String()
}

// missing describes an object that was not found, or that the user has no permission to read.
func (f *findings) missing(kind, name, text string) node {
	if f.forbidden[kind] {
		return line("? %s %s: no permission to read it", kind, name)
	}
	return line("%s %s %s: %s", markFailed, kind, name, text)
}

func (f *findings) settingsNode() node {
	name := f.conversation.Spec.UserSettingsName
	if f.settings == nil {
		return f.missing("UserSettings", name, "does not exist")
	}
	conditions := f.settings.Status.Conditions
	sign := markPending
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil &&
		ready.Status != metav1.ConditionUnknown {
		sign = mark(ready.Status == metav1.ConditionTrue)
	}
	n := line("%s UserSettings %s", sign, name)
	for _, condition := range conditions {
		if condition.Type != v1alpha1.ConditionReady && condition.Type != v1alpha1.ConditionStalled &&
			condition.Status != metav1.ConditionTrue {
			n.add("%s %s  %s: %s", markFailed, condition.Type, condition.Reason, oneLine(condition.Message))
		}
	}
	return n
}

func (f *findings) classNode() node {
	name := f.className()
	switch {
	case f.class != nil:
		return line("%s SessionClass %s", markOK, name)
	case f.forbidden["SessionClass"] || name != v1alpha1.DefaultSessionClass:
		return f.missing("SessionClass", name, "does not exist")
	}
	return line("%s SessionClass %s: built in", markOK, name)
}

func (f *findings) podNode(now time.Time) node {
	name, pod := f.conversation.PodName(), f.pod
	switch {
	case pod != nil:
	case f.forbidden["Pod"] || stalled(f.conversation) && f.conversation.Status.State != v1alpha1.StateStopped:
		return f.missing("Pod", name, "does not exist")
	case f.conversation.Status.State == v1alpha1.StateStopped:
		return node{}
	default:
		return line("%s Pod %s: not created yet", markPending, name)
	}
	text := fmt.Sprintf("Pod %s  %s", name, pod.Status.Phase)
	if pod.DeletionTimestamp != nil {
		text += ", being deleted"
	}
	if pod.Spec.NodeName != "" {
		text += " on " + pod.Spec.NodeName
	}
	n := line("%s  (%s)", text, since(pod.CreationTimestamp, now))
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status != corev1.ConditionTrue {
			n.add("%s not scheduled: %s", markFailed, oneLine(condition.Message))
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		n.children = append(n.children, containerNode(status))
	}
	n.text = podSign(pod, n.children) + " " + n.text
	return n
}

// podSign returns the mark of a pod. The parameter parts contains the lines below the pod, such as
// its containers. If one of these lines is marked as failed and the pod is not ready, the pod is
// marked as failed.
func podSign(pod *corev1.Pod, parts []node) string {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case ready, pod.Status.Phase == corev1.PodSucceeded:
		return markOK
	case pod.Status.Phase == corev1.PodFailed, slices.ContainsFunc(parts,
		func(n node) bool { return strings.HasPrefix(n.text, markFailed) }):
		return markFailed
	}
	return markPending
}

func containerNode(s corev1.ContainerStatus) node {
	text, sign := "waiting", markPending
	switch {
	case s.State.Running != nil && s.Ready:
		text, sign = "running", markOK
	case s.State.Running != nil:
		text = "running, not ready"
	case s.State.Terminated != nil:
		text, sign = fmt.Sprintf("exited with status %d", s.State.Terminated.ExitCode), mark(s.State.Terminated.ExitCode == 0)
	case s.State.Waiting != nil:
		text += ": " + s.State.Waiting.Reason
		if strings.HasSuffix(s.State.Waiting.Reason, "BackOff") || strings.HasPrefix(s.State.Waiting.Reason, "Err") ||
			strings.HasSuffix(s.State.Waiting.Reason, "Error") {
			sign = markFailed
		}
	}
	if s.RestartCount > 0 {
		text += fmt.Sprintf(", %d restarts", s.RestartCount)
		if t := s.LastTerminationState.Terminated; t != nil {
			text += fmt.Sprintf(", last exit status %d (%s)", t.ExitCode, cmp.Or(session.WhyEnded(t.Message), t.Reason))
		}
	}
	return line("%s %s  %s  %s", sign, s.Name, text, s.Image)
}

func (f *findings) workspaceNode() node {
	switch {
	case f.claim == nil && f.conversation.Status.Workspace == v1alpha1.WorkspaceScratch:
		if f.conversation.Status.State == v1alpha1.StateStopped && f.pod == nil {
			return line("Workspace: scratch space, deleted with the pod")
		}
		return line("%s Workspace: scratch space, deleted with the pod", markOK)
	case f.claim == nil:
		return node{}
	}
	sign := markPending // some claims are bound only when a pod uses them
	switch f.claim.Status.Phase {
	case corev1.ClaimBound:
		sign = markOK
	case corev1.ClaimLost:
		sign = markFailed
	}
	size := f.claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return line("%s PersistentVolumeClaim %s  %s, %s", sign, f.claim.Name, f.claim.Status.Phase, size.String())
}

func (f *findings) secretNode() node {
	if f.secret == nil {
		return node{}
	}
	return line("%s Secret %s", markOK, f.secret.Name)
}

func (f *findings) attemptsNode() node {
	s := f.conversation.Status
	if s.Attempt <= 1 && s.Restarts == 0 {
		return node{}
	}
	n := line("Attempt %d, %d automatic restarts", max(s.Attempt, 1), s.Restarts)
	if s.LastRestart != "" {
		n.text += ", last cause: " + s.LastRestart
	}
	return n
}

func (f *findings) resultNode() node {
	r := f.conversation.Status.Result
	if r == nil {
		return node{}
	}
	n := node{text: "Result"}
	for _, part := range [][2]string{{"summary", oneLine(r.Summary)}, {"branch", r.Branch}, {"commit", r.Commit},
		{"pull request", r.PullRequest}, {"cost", r.Cost}} {
		if part[1] != "" {
			n.add("%s: %s", part[0], part[1])
		}
	}
	return n
}

func (f *findings) conditionsNode(now time.Time) node {
	n := node{text: "Conditions"}
	for _, c := range f.conversation.Status.Conditions {
		message := ""
		// Do not repeat the message of the headline.
		if c.Message != "" && c.Message != f.conversation.Status.Message {
			message = "  " + oneLine(c.Message)
		}
		n.add("%-14s %-5s  %s  (%s)%s", c.Type, c.Status, c.Reason, since(c.LastTransitionTime, now), message)
	}
	if len(n.children) == 0 {
		n.text += ": none yet"
	}
	return n
}

func (f *findings) eventsNode(now time.Time) node {
	n := node{text: "Events"}
	for _, e := range f.events {
		count, times := e.Count, ""
		if e.Series != nil {
			count = e.Series.Count
		}
		if count > 1 {
			times = fmt.Sprintf(" ×%d", count)
		}
		n.add("%4s  %-7s  %s  %s%s  %s", age(now.Sub(eventTime(e))), e.Type, e.InvolvedObject.Kind, e.Reason, times,
			oneLine(e.Message))
	}
	switch {
	case f.forbidden["Event"]:
		n.text += ": no permission to read them"
	case len(f.events) == 0:
		n.text += ": none"
	}
	return n
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
