package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestStatusShowsTheCauseOfARestart(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`{"reason":"Unresponsive"}`: "1 restarts, last exit status 137 (Unresponsive)",
		"":                          "1 restarts, last exit status 137 (Error)",
	} {
		got := containerNode(corev1.ContainerStatus{RestartCount: 1, LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", Message: message},
		}})
		if !strings.Contains(got.text, want) {
			t.Errorf("%q: got %q", message, got.text)
		}
	}
}

func TestStatusShowsTheReasonOfAStuckStartFirst(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)
	create(t, conversation(ns, "stuck"))
	k.bind("stuck")
	k.report("stuck", corev1.ConditionFalse, corev1.ContainerStatus{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}})
	awaitState(t, ns, "stuck", "STARTING", "PullingImage")
	pod := k.pod("stuck")
	create(t, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pull"}, Type: corev1.EventTypeWarning,
		Reason: "Failed", Count: 4,
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ns, Name: pod.Name, UID: pod.UID},
		Message:        "Failed to pull image \"example.com/parley:1\": not found", LastTimestamp: metav1.Now()})

	stdout, _, err := run(t, ns, "status", "stuck")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", stdout)
	lines := strings.Split(stdout, "\n")
	for i, want := range []string{"stuck  STARTING  PullingImage", "Image example.com/parley:1: ImagePullBackOff",
		"→ Check the image name"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i+1, lines[i], want)
		}
	}
	for _, want := range []string{"✓ UserSettings ada", "✗ Pod stuck-session  Pending on " + k.node,
		"✗ session  waiting: ImagePullBackOff", "✓ Secret stuck-session", "Reconciling", "Failed ×4"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing", want)
		}
	}
	all, _, err := run(t, ns, "status")
	if err != nil || !strings.HasPrefix(all, "… stuck  STARTING  PullingImage") || strings.Count(all, "\n") != 1 {
		t.Errorf("one line for each session: %v\n%s", err, all)
	}
}

func TestStatusOmitsEventsOfDeletedObjectsWithTheSameName(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	create(t, conversation(ns, "c"))
	k := newKubelet(t, ns)
	pod := k.pod("c")
	c := awaitState(t, ns, "c", "STARTING", "Scheduling")
	about := func(name, kind, object string, uid types.UID) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Type: corev1.EventTypeWarning,
			Reason: name, LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: ns, Name: object, UID: uid}, Message: "text"}
	}
	create(t, about("ours", "Conversation", "c", c.UID), about("its-pods", "Pod", pod.Name, pod.UID),
		about("theirs", "Conversation", "c", "earlier"), about("another-pods", "Pod", pod.Name, "earlier"))
	stdout, _, err := run(t, ns, "status", "c")
	if err != nil || !strings.Contains(stdout, "ours") || !strings.Contains(stdout, "its-pods") || strings.Contains(stdout,
		"theirs") || strings.Contains(stdout, "another-pods") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

func TestAnEmptyNameIsRejected(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"status", "chat", "open", "stop"} {
		if stdout, _, err := run(t, "default", command, ""); err == nil || !strings.Contains(err.Error(), "NAME is empty") {
			t.Errorf("%s: %v, %q", command, err, stdout)
		}
	}
}

func TestTheStatusOfAllSessionsHasAlignedColumns(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	off := conversation(ns, "much-longer-name")
	off.Spec.Suspend = true
	create(t, conversation(ns, "c"), off)
	awaitState(t, ns, "c", "STARTING", "Scheduling")
	awaitState(t, ns, "much-longer-name", "STOPPED", "Suspended")
	stdout, _, err := run(t, ns, "status")
	lines := strings.Split(stdout, "\n")
	if err != nil || len(lines) != 3 {
		t.Fatalf("%v\n%s", err, stdout)
	}
	column := func(line, word string) int { return utf8.RuneCountInString(line[:max(0, strings.Index(line, word))]) }
	for _, words := range [][2]string{{"STARTING", "STOPPED"}, {"Scheduling", "Suspended"}, {"(", "("}} {
		if first, second := column(lines[0], words[0]), column(lines[1], words[1]); first == 0 || first != second {
			t.Errorf("%s is at %d and %s at %d in\n%s", words[0], first, words[1], second, stdout)
		}
	}
}

func TestAHealthyStartIsShownAsPending(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)
	create(t, conversation(ns, "c"))
	k.bind("c")
	k.report("c", corev1.ConditionFalse, corev1.ContainerStatus{State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
	stdout, _, err := run(t, ns, "status", "c")
	if err != nil || !strings.Contains(stdout, markPending+" Pod c-session  Running") ||
		strings.Contains(stdout, markFailed) ||
		strings.Contains(stdout, "manager") || !strings.HasPrefix(stdout, "… c  STARTING  ") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// Objects of a session appear one after the other. Only an object that cannot proceed is shown as
// failed.
func TestOnlyObjectsThatCannotProceedAreShownAsFailed(t *testing.T) {
	claim := func(phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	pod := func(phase corev1.PodPhase) *corev1.Pod { return &corev1.Pod{Status: corev1.PodStatus{Phase: phase}} }
	settings := func(conditions ...metav1.Condition) *v1alpha1.UserSettings {
		return &v1alpha1.UserSettings{Status: v1alpha1.UserSettingsStatus{Conditions: conditions}}
	}
	f := func(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod, settings *v1alpha1.UserSettings) *findings {
		return &findings{conversation: conversation("ns", "c"), claim: claim, pod: pod, settings: settings}
	}
	stalled := f(nil, nil, nil)
	stalled.conversation.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled,
		Status: metav1.ConditionTrue}}
	for _, test := range []struct {
		got  node
		want string
	}{
		{f(claim(corev1.ClaimPending), nil, nil).workspaceNode(), markPending},
		{f(claim(corev1.ClaimBound), nil, nil).workspaceNode(), markOK},
		{f(claim(corev1.ClaimLost), nil, nil).workspaceNode(), markFailed},
		{f(nil, nil, nil).podNode(time.Now()), markPending},
		{stalled.podNode(time.Now()), markFailed},
		{f(nil, pod(corev1.PodPending), nil).podNode(time.Now()), markPending},
		{f(nil, pod(corev1.PodSucceeded), nil).podNode(time.Now()), markOK},
		{f(nil, pod(corev1.PodFailed), nil).podNode(time.Now()), markFailed},
		{f(nil, nil, settings()).settingsNode(), markPending},
		{f(nil, nil, settings(metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue})).settingsNode(),
			markOK},
		{f(nil, nil, settings(metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse})).settingsNode(),
			markFailed},
	} {
		if !strings.HasPrefix(test.got.text, test.want+" ") {
			t.Errorf("%q, want %s", test.got.text, test.want)
		}
	}
}

func TestStatusShowsTheNameOfMissingSettings(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	missing := conversation(ns, "c")
	missing.Spec.UserSettingsName = "missing"
	create(t, missing)
	awaitState(t, ns, "c", "STARTING", "SettingsNotReady")
	stdout, _, err := run(t, ns, "status", "c")
	if err != nil || !strings.Contains(stdout, "UserSettings missing do not exist") || !strings.Contains(stdout,
		"✗ UserSettings missing: does not exist") {
		t.Errorf("%v\n%s", err, stdout)
	}
	unseen := env.Namespace(t, nil)
	create(t, conversation(unseen, "c"))
	stdout, _, err = run(t, unseen, "status", "c")
	if err != nil || !strings.Contains(stdout, "Is the manager running?") {
		t.Errorf("without an operator: %v\n%s", err, stdout)
	}
}

func TestStatusOmitsObjectsThatTheUserCannotRead(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	create(t, conversation(ns, "c"))
	awaitState(t, ns, "c", "STARTING", "Scheduling")
	user, err := env.AddUser(envtest.User{Name: "viewer-" + ns}, env.Config)
	if err != nil {
		t.Fatal(err)
	}
	create(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "viewer"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"parley.dev"}, Resources: []string{"conversations"}, Verbs: []string{"get", "list", "watch"}}}})
	create(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "viewer"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "viewer"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "viewer-" + ns}}})
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	var viewed *invocation
	testenv.Await(t, func() error { // RBAC takes effect with a delay
		viewed = runAsync(t, file, ns, "status", "c")
		return viewed.wait(t)
	})
	for _, want := range []string{"STARTING", "? UserSettings ada: no permission to read it",
		"? Pod c-session: no permission to read it", "Events: no permission to read them"} {
		if !strings.Contains(viewed.out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, viewed.out.String())
		}
	}
}

func TestShellCompletionOffersNames(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	create(t, conversation(ns, "first"), conversation(ns, "second"),
		&v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "ada"}})
	for want, args := range map[string][]string{
		"first second": {"status", ""},
		"second":       {"stop", "s"},
		"ada":          {"key", ""},
		"":             {"start", "first", ""},
		ns:             {"status", "-n", ns[:len(ns)-1]},
	} {
		out := &bytes.Buffer{}
		// kubectl runs the completer with the words of the command line.
		cmd := withArgs(newRoot(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: &bytes.Buffer{}}),
			append([]string{"/usr/local/bin/" + completer, "--kubeconfig", kubeconfig, "--namespace", ns}, args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		var names []string
		for line := range strings.Lines(out.String()) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); name != "" && !strings.HasPrefix(name, ":") {
				names = append(names, name)
			}
		}
		if slices.Sort(names); strings.Join(names, " ") != want {
			t.Errorf("%v: %v, want %s", args, names, want)
		}
	}
}

func TestEveryReasonOfABlockedStartHasAHint(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonSettingsNotReady, v1alpha1.ReasonQueued, v1alpha1.ReasonScheduling,
		v1alpha1.ReasonPullingImage, v1alpha1.ReasonPreparingWorkspace,
		v1alpha1.ReasonStartingRuntime, v1alpha1.ReasonRestarting, v1alpha1.ReasonFailed, v1alpha1.ReasonLost,
		v1alpha1.ReasonStartDeadlineExceeded, v1alpha1.ReasonSettingsMissing, v1alpha1.ReasonSettingsDeleted,
		v1alpha1.ReasonNotAllowed, v1alpha1.ReasonForeignObject, v1alpha1.ReasonRejected} {
		c := conversation("ns", "c")
		c.Status.Reason = reason
		if text := problemOf(c).Error(); hints[reason] == "" || strings.Contains(text, "NAME") || !strings.Contains(text,
			"\n") {
			t.Errorf("%s: %s", reason, text)
		}
	}
}
