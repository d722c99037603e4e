package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestCommandsStartStopResumeAndRestartASession(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)

	started := runAsync(t, kubeconfig, ns, "start", "c", "--settings", "ada", "-m", "hello")
	awaitState(t, ns, "c", "STARTING", "Scheduling")
	k.start("c")
	if err := started.wait(t); err != nil || started.out.String() != "conversation.parley.dev/c started\n" {
		t.Fatalf("start: %v, %q", err, started.out.String())
	}
	if steps := started.errOut.String(); !strings.Contains(steps, "STARTING  Scheduling") || !strings.Contains(steps,
		"RUNNING  Running") {
		t.Errorf("the steps are not printed: %q", steps)
	}
	c := awaitState(t, ns, "c", "RUNNING", "Running")
	if *c.Spec.InitialUserMsg != "hello" || c.Spec.UserSettingsName != "ada" {
		t.Errorf("spec is %+v", c.Spec)
	}

	stopped := runAsync(t, kubeconfig, ns, "stop", "c")
	k.releasePod("c")
	if err := stopped.wait(t); err != nil || stopped.out.String() != "conversation.parley.dev/c stopped\n" {
		t.Fatalf("stop: %v, %q", err, stopped.out.String())
	}
	if c := awaitState(t, ns, "c", "STOPPED", "Suspended"); !c.Spec.Suspend {
		t.Error("spec.suspend is not set")
	}

	resumed := runAsync(t, kubeconfig, ns, "start", "c")
	k.start("c")
	if err := resumed.wait(t); err != nil {
		t.Fatal(err)
	}

	k.end("c", "first", `{"reason":"Idle"}`)
	awaitState(t, ns, "c", "STOPPED", "Idle")
	again := runAsync(t, kubeconfig, ns, "start", "c")
	awaitState(t, ns, "c", "STARTING", "Scheduling")
	k.releasePod("c")
	k.start("c")
	if err := again.wait(t); err != nil {
		t.Fatalf("start again: %v", err)
	}
	if _, _, err := run(t, ns, "start", "c", "-m", "something else"); err == nil || !strings.Contains(err.Error(),
		"cannot change") {
		t.Errorf("the task of a session was changed: %v", err)
	}
}

func TestTheErrorOfABlockedStartContainsTheReason(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-session"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}})
	_, _, err := run(t, ns, "start", "c", "--settings", "ada", "-m", "hello")
	if err == nil || !strings.Contains(err.Error(), "ForeignObject") || !strings.Contains(err.Error(),
		"remove that object, or choose another name") {
		t.Errorf("got %v", err)
	}
	if _, _, err := run(t, ns, "start", "other"); err == nil || !strings.Contains(err.Error(), "--message") {
		t.Errorf("missing Conversation without a task: %v", err)
	}
	if _, _, err := run(t, ns, "start", "c", "--timeout", "1ms"); err == nil {
		t.Error("a timeout of a millisecond had no effect")
	}
}

func TestAStartReportsItsPendingStepWhenItTimesOut(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	waiting := conversation(ns, "c")
	waiting.Spec.UserSettingsName = "nosuch"
	create(t, waiting)
	awaitState(t, ns, "c", "STARTING", "SettingsNotReady")
	_, _, err := run(t, ns, "start", "c", "--timeout", "1s")
	for _, want := range []string{"timed out after 1s", "UserSettings nosuch do not exist", "Create the missing object",
		"The Conversation remains"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	_, _, err = run(t, env.Namespace(t, nil), "start", "c", "-m", "hello", "--timeout", "1ms")
	if err == nil || !strings.Contains(err.Error(), "Is the manager running?") {
		t.Errorf("without an operator: %v", err)
	}
}

func TestAFieldManagedByGitOpsIsChangedOnlyWithForce(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	applied := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "parley.dev/v1alpha1", "kind": "Conversation", "metadata": map[string]any{"namespace": ns, "name": "c"},
		"spec": map[string]any{"userSettingsName": "ada", "suspend": false},
	}}
	if err := env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner("kustomize-controller")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(t, ns, "stop", "c", "--wait=false"); err == nil || !strings.Contains(err.Error(),
		"spec.suspend is managed by kustomize-controller") {
		t.Errorf("got %v", err)
	}
	if _, _, err := run(t, ns, "stop", "c", "--wait=false", "--force"); err != nil {
		t.Errorf("with --force: %v", err)
	}
	// If no tool manages a field, the field can be changed without --force.
	create(t, conversation(ns, "own"))
	if _, _, err := run(t, ns, "stop", "own", "--wait=false"); err != nil {
		t.Errorf("unmanaged field: %v", err)
	}
}

func TestTheLogsCommandFollowsARestartedContainer(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)
	create(t, conversation(ns, "c"))
	awaitState(t, ns, "c", "STARTING", "Scheduling")
	if _, _, err := run(t, ns, "logs", "c"); err == nil || !strings.Contains(err.Error(), "STARTING  Scheduling") {
		t.Errorf("log before the start: %v", err)
	}
	logs := runAsync(t, kubeconfig, ns, "logs", "-f", "c")
	k.start("c")
	first := k.process()
	first <- "first line\n"
	awaitOutput(t, logs, "first line\n")
	close(first)
	k.run("c", "second", 1)
	next := k.process()
	next <- "second process\n"
	awaitOutput(t, logs, "first line\nsecond process\n")
	k.end("c", "second", `{"reason":"Completed"}`)
	awaitState(t, ns, "c", "STOPPED", "Completed")
	close(next)
	if err := logs.wait(t); err != nil {
		t.Errorf("logs: %v", err)
	}
}

func awaitOutput(t *testing.T, r *invocation, want string) {
	t.Helper()
	testenv.Await(t, func() error {
		if got := r.out.String(); got != want {
			return errOutput{got, r.errOut.String()}
		}
		return nil
	})
}

type errOutput struct{ out, err string }

func (e errOutput) Error() string { return "stdout " + e.out + ", stderr " + e.err }
