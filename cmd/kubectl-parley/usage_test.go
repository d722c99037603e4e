package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestUsageShowsCostsAndLimits(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	facade := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get(rest.KeyHeader) != key || r.URL.Path != "/api/usage":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Query().Get("month") == "2026-01":
			fmt.Fprint(w, `{"month": "2026-01", "spent": "0", "unsettled": "0", "reserved": "0", "limits": [], "lines": []}`)
		default:
			fmt.Fprint(w, `{"month": "2026-02", "spent": "12.341", "unsettled": "0.5", "reserved": "1", "limits": [
				{"scope": "user", "period": "month", "limit": "50", "used": "13.341", "resets": "2026-03-01T00:00:00Z"},
				{"scope": "namespace", "period": "day", "limit": "7", "used": null, "resets": "2026-02-02T00:00:00Z"}],
				"lines": [
				{"day": "2026-02-01", "namespace": "a", "model": "cheap", "calls": 3, "input_tokens": 10, "output_tokens": 1,
				"cost": "0.341"},
				{"day": "2026-02-01", "namespace": "a", "model": "big\u001b[2J", "calls": 1, "input_tokens": 20,
				"output_tokens": 2, "cost": "5"},
				{"day": "2026-02-02", "namespace": "b", "model": "big\u001b[2J", "calls": 2, "input_tokens": 30,
				"output_tokens": 3, "cost": "7"}]}`)
		}
	}))
	t.Cleanup(facade.Close)
	usage := func(args ...string) (string, error) {
		stdout, _, err := run(t, ns, append([]string{"usage", "--settings=ada", "--facade=" + facade.URL}, args...)...)
		return stdout, err
	}
	out, err := usage()
	want := `2026-02: $12.35 spent ($0.50 of it unsettled), $1.00 reserved
Limit per month and user: $50.00, $13.35 used, resets 2026-03-01T00:00:00Z
Limit per day and namespace: $7.00, resets 2026-02-02T00:00:00Z
MODEL`
	if err != nil || !strings.HasPrefix(out, want) || strings.Contains(out, "\x1b") {
		t.Errorf("%v: %q", err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if last := strings.Fields(lines[len(lines)-1]); !slices.Equal(last, []string{"cheap", "3", "10", "1", "$0.35"}) ||
		!strings.Contains(lines[len(lines)-2], "50") {
		t.Errorf("the models are %q", lines)
	}
	if out, err := usage("--month=2026-01"); err != nil || out != "2026-01: $0.00 spent\n" {
		t.Errorf("%v: %q", err, out)
	}
	if _, err := usage("--month=may"); err == nil || !strings.Contains(err.Error(), "--month") {
		t.Errorf("an invalid month: %v", err)
	}
}

func TestAdministratorsSeeTheCostsOfANamespace(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	k := newKubelet(t, ns)
	if _, _, err := run(t, "team", "usage", "--all", "--facade-namespace="+ns); err == nil ||
		!strings.Contains(err.Error(), "no archive runs") {
		t.Errorf("without an archive: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "parley-archive-1", Labels: map[string]string{
		"app.kubernetes.io/name": v1alpha1.ManagedBy, v1alpha1.LabelComponent: "archive"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "archive", Image: "example.com/parley:1",
			Args: []string{"--per-user=1Gi", "--store=file:///archive"}}}}}
	create(t, pod)
	if err := fakekubelet.Bind(t.Context(), env.Client, pod, k.node); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		pod.Status.Phase = corev1.PodRunning
		return env.Client.Status().Update(t.Context(), pod)
	})
	k.exec = func(command []string) (stdout, stderr string, status metav1.Status) {
		if strings.Join(command, " ") != "/archive --store=file:///archive --usage=team --month=2026-02" {
			return "", "log\nthe command is " + strings.Join(command, " "), metav1.Status{Status: metav1.StatusFailure,
				Message: "exit code 1"}
		}
		return `{"month": "2026-02", "spent": "3", "reserved": "0.5", "owners": [{"owner": "ada", "spent": "1"},
			{"owner": "bob", "spent": "2", "reserved": "0.5"}], "lines": [{"namespace": "team", "period": "2026-02-01",
			"model": "m", "calls": 4, "input": 5, "output": 6, "cost": "3"}]}`, "log", metav1.Status{
				Status: metav1.StatusSuccess}
	}
	out, _, err := run(t, "team", "usage", "--all", "--month=2026-02", "--facade-namespace="+ns)
	var got []string
	for line := range strings.Lines(out) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if want := []string{"OWNER SPENT UNSETTLED RESERVED", "bob $2.00 $0.00 $0.50", "ada $1.00 $0.00 $0.00",
		"total $3.00 $0.00 $0.50", "", "MODEL CALLS INPUT OUTPUT COST", "m 4 5 6 $3.00"}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("%v: %q", err, got)
	}
	if _, _, err := run(t, "other", "usage", "--all", "--facade-namespace="+ns); err == nil ||
		!strings.Contains(err.Error(), "the command is /archive") || strings.Contains(err.Error(), "log") {
		t.Errorf("a failing command: %v", err)
	}
}
