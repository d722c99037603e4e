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

// node is a line of a tree.
type node struct {
	text     string
	children []node
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

// Marks before a line: all is well, wait, and somebody's help is needed.
const (
	well  = "✓"
	waits = "…"
	bad   = "✗"
)

func mark(ok bool) string {
	if ok {
		return well
	}
	return bad
}

// headline is where a session stands, in a line that says what matters first: its name, its state,
// why, for how long, and what else is to be said, or nothing in place of those that there are not.
func headline(c *v1alpha1.Conversation, now time.Time) []string {
	sign, at := waits, c.Status.StartTime
	switch {
	case stalled(c):
		sign = bad
	case meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady):
		sign = well
	}
	switch c.Status.State {
	case v1alpha1.StateRunning:
		at = c.Status.RunningTime
	case v1alpha1.StateStopped:
		at = c.Status.StopTime
	}
	line := []string{sign + " " + c.Name, string(c.Status.State), c.Status.Reason, "", ""}
	if at != nil {
		line[3] = fmt.Sprintf("(%s)", since(at, now))
	}
	switch {
	case c.Status.ObservedGeneration < 0:
		line[4] = unsaid
	case !observed(c):
		line[4] = "not seen by the operator yet"
	}
	return line
}

// tree tells where a session stands: what and why first, then what it is made of.
func (f *findings) tree(now time.Time) string {
	c := f.conversation
	out := &strings.Builder{}
	said := slices.DeleteFunc(headline(c, now), func(text string) bool { return text == "" })
	fmt.Fprintln(out, strings.Join(said, "  "))
	if c.Status.Message != "" {
		fmt.Fprintf(out, "  %s\n", oneLine(c.Status.Message))
	}
	// Who made the pod runs.
	begun := c.Status.ObservedGeneration < 0 && f.pod != nil
	if hint := hintFor(c); hint != "" && !begun {
		fmt.Fprintf(out, "  → %s\n", hint)
	}
	root := node{children: []node{f.settingsNode(), f.classNode(), f.podNode(now), f.workspaceNode(), f.secretNode()}}
	root.children = slices.DeleteFunc(append(root.children, f.attemptsNode(), f.resultNode(), f.conditionsNode(now),
		f.eventsNode(now)),
		func(n node) bool { return n.text == "" })
	root.write(out, "")
	return out.String()
}

// absent says of an object that was not found whether it may be there all the same.
func (f *findings) absent(kind, name, what string) node {
	if f.hidden[kind] {
		return node{text: fmt.Sprintf("? %s %s: you may not read it", kind, name)}
	}
	return node{text: fmt.Sprintf("%s %s %s: %s", bad, kind, name, what)}
}

func (f *findings) settingsNode() node {
	name := f.conversation.Spec.UserSettingsName
	if f.settings == nil {
		return f.absent("UserSettings", name, "does not exist")
	}
	conditions := f.settings.Status.Conditions
	sign := waits
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil &&
		ready.Status != metav1.ConditionUnknown {
		sign = mark(ready.Status == metav1.ConditionTrue)
	}
	n := node{text: fmt.Sprintf("%s UserSettings %s", sign, name)}
	for _, condition := range conditions {
		if condition.Type != v1alpha1.ConditionReady && condition.Type != v1alpha1.ConditionStalled &&
			condition.Status != metav1.ConditionTrue {
			n.children = append(n.children, node{text: fmt.Sprintf("%s %s  %s: %s", bad, condition.Type, condition.Reason,
				oneLine(condition.Message))})
		}
	}
	return n
}

func (f *findings) classNode() node {
	name := f.className()
	switch {
	case f.class != nil:
		return node{text: fmt.Sprintf("%s SessionClass %s", well, name)}
	case f.hidden["SessionClass"] || name != v1alpha1.DefaultSessionClass:
		return f.absent("SessionClass", name, "does not exist")
	}
	return node{text: fmt.Sprintf("%s SessionClass %s: the built-in one", well, name)}
}

func (f *findings) podNode(now time.Time) node {
	name := v1alpha1.SessionName(f.conversation.Name)
	if f.pod == nil {
		if f.conversation.Status.State == v1alpha1.StateStopped && !f.hidden["Pod"] {
			return node{}
		}
		if !f.hidden["Pod"] && !stalled(f.conversation) {
			return node{text: fmt.Sprintf("%s Pod %s: there is none yet", waits, name)}
		}
		return f.absent("Pod", name, "there is none")
	}
	pod := f.pod
	text := fmt.Sprintf("Pod %s  %s", name, pod.Status.Phase)
	if pod.DeletionTimestamp != nil {
		text += ", being deleted"
	}
	if pod.Spec.NodeName != "" {
		text += " on " + pod.Spec.NodeName
	}
	n := node{text: fmt.Sprintf("%s  (%s)", text, since(&pod.CreationTimestamp, now))}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status != corev1.ConditionTrue {
			n.children = append(n.children, node{text: bad + " not scheduled: " + oneLine(condition.Message)})
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		n.children = append(n.children, containerNode(status))
	}
	n.text = podSign(pod, n.children) + " " + n.text
	return n
}

// podSign is how a pod does: one that is not ready needs help where a part of it does.
func podSign(pod *corev1.Pod, parts []node) string {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case ready, pod.Status.Phase == corev1.PodSucceeded:
		return well
	case pod.Status.Phase == corev1.PodFailed, slices.ContainsFunc(parts,
		func(n node) bool { return strings.HasPrefix(n.text, bad) }):
		return bad
	}
	return waits
}

func containerNode(s corev1.ContainerStatus) node {
	text := "waiting"
	sign := waits
	switch {
	case s.State.Running != nil:
		text, sign = "running", mark(s.Ready)
		if !s.Ready {
			text, sign = "running, not ready", waits
		}
	case s.State.Terminated != nil:
		text, sign = fmt.Sprintf("ended with status %d", s.State.Terminated.ExitCode), mark(s.State.Terminated.ExitCode == 0)
	case s.State.Waiting != nil:
		text += ": " + s.State.Waiting.Reason
		if strings.HasSuffix(s.State.Waiting.Reason, "BackOff") || strings.HasPrefix(s.State.Waiting.Reason, "Err") ||
			strings.HasSuffix(s.State.Waiting.Reason, "Error") {
			sign = bad
		}
	}
	if s.RestartCount > 0 {
		text += fmt.Sprintf(", %d restarts", s.RestartCount)
		if t := s.LastTerminationState.Terminated; t != nil {
			text += fmt.Sprintf(", last ended with status %d (%s)", t.ExitCode, cmp.Or(session.WhyEnded(t.Message), t.Reason))
		}
	}
	return node{text: fmt.Sprintf("%s %s  %s  %s", sign, s.Name, text, s.Image)}
}

func (f *findings) workspaceNode() node {
	if f.claim == nil {
		if f.conversation.Status.Workspace == v1alpha1.WorkspaceScratch {
			return node{text: well + " Workspace: scratch space, which goes with the pod"}
		}
		return node{}
	}
	sign := waits // a claim may be bound only when a pod uses it
	switch f.claim.Status.Phase {
	case corev1.ClaimBound:
		sign = well
	case corev1.ClaimLost:
		sign = bad
	}
	size := f.claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return node{text: fmt.Sprintf("%s PersistentVolumeClaim %s  %s, %s", sign, f.claim.Name, f.claim.Status.Phase,
		size.String())}
}

func (f *findings) secretNode() node {
	if f.secret == nil {
		return node{}
	}
	return node{text: fmt.Sprintf("%s Secret %s", well, f.secret.Name)}
}

func (f *findings) attemptsNode() node {
	s := f.conversation.Status
	if s.Attempt <= 1 && s.Restarts == 0 {
		return node{}
	}
	text := fmt.Sprintf("Attempt %d, restarted %d times since it was last started", max(s.Attempt, 1), s.Restarts)
	if s.LastRestart != "" {
		text += ", last because of: " + s.LastRestart
	}
	return node{text: text}
}

func (f *findings) resultNode() node {
	r := f.conversation.Status.Result
	if r == nil {
		return node{}
	}
	n := node{text: "Result"}
	for _, part := range [][2]string{{"summary", oneLine(r.Summary)}, {"branch", r.Branch}, {"commit", r.Commit},
		{"cost", r.Cost}} {
		if part[1] != "" {
			n.children = append(n.children, node{text: part[0] + ": " + part[1]})
		}
	}
	return n
}

func (f *findings) conditionsNode(now time.Time) node {
	n := node{text: "Conditions"}
	for _, c := range f.conversation.Status.Conditions {
		text := fmt.Sprintf("%-14s %-5s  %s  (%s)", c.Type, c.Status, c.Reason, since(&c.LastTransitionTime, now))
		// What the headline says need not be said again.
		if c.Message != "" && c.Message != f.conversation.Status.Message {
			text += "  " + oneLine(c.Message)
		}
		n.children = append(n.children, node{text: text})
	}
	if len(n.children) == 0 {
		n.text += ": none yet"
	}
	return n
}

func (f *findings) eventsNode(now time.Time) node {
	n := node{text: "Events"}
	for _, e := range f.events {
		times := ""
		if count := countOf(e); count > 1 {
			times = fmt.Sprintf(" ×%d", count)
		}
		n.children = append(n.children, node{text: fmt.Sprintf("%4s  %-7s  %s  %s%s  %s", age(now.Sub(happened(e))), e.Type,
			e.InvolvedObject.Kind, e.Reason, times, oneLine(e.Message))})
	}
	switch {
	case f.hidden["Event"]:
		n.text += ": you may not read them"
	case len(f.events) == 0:
		n.text += ": none"
	}
	return n
}

func countOf(e corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return e.Count
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
