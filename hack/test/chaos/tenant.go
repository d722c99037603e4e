package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const (
	// tenantName is the name of the tenant's namespace, account and settings.
	tenantName = "mallory"
	// forbiddenClass is a class that the tenant may not use.
	forbiddenClass = "administrators"
	// target is a conversation of the tenant that runs, and ended one whose events are archived.
	target, ended = "target", "ended"
	// The messages to which the stub model answers with a command.
	printSecretsMessage, largeOutputMessage = "PRINT SECRETS", "LARGE OUTPUT"
)

// tenant is a user with the rights of the role edit in one namespace, and nothing else.
type tenant struct {
	installation *installation
	api          client.Client
	http         *httpFrontend

	mu       sync.Mutex
	outcomes map[string]*attackOutcomes
}

// attackOutcomes counts the outcomes of an attack's calls.
type attackOutcomes struct {
	accepted, refused, failed int
	longest                   time.Duration
	words                     string // of the last refusal or failure
}

// attack is one way to hurt others. It is called again and again, with the number of the call.
type attack struct {
	name string
	// every is the pause after each call, and atOnce the number of concurrent callers.
	every  time.Duration
	atOnce int
	do     func(ctx context.Context, t *tenant, n int) error
}

// newTenantScript is a model that prints secrets and large outputs if a message asks for it, and
// answers all other messages with a short text.
func newTenantScript() *scriptedmodel.Server {
	on := func(message, command string) scriptedmodel.Step {
		return scriptedmodel.Step{Times: 1 << 30,
			When: func(r *scriptedmodel.Request) bool {
				last := r.Turns[len(r.Turns)-1]
				return len(r.Tools) > 0 && len(last.Results) == 0 && strings.Contains(last.Text, message)
			},
			Calls: []scriptedmodel.Call{{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{
				"command": command, "security_risk": "LOW"})}},
		}
	}
	return scriptedmodel.New(scriptedmodel.Script{Steps: []scriptedmodel.Step{
		on(printSecretsMessage, "env; set; cat /proc/self/environ; ls /proc/1/environ"),
		on(largeOutputMessage, "head -c 4000000 /dev/zero | tr '\\0' x"),
	}})
}

// newTenant creates the tenant, and the conversations that its attacks use.
func newTenant(ctx context.Context, i *installation, model string) (*tenant, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	account := metav1.ObjectMeta{Namespace: tenantName, Name: tenantName}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantName}},
		&corev1.ServiceAccount{ObjectMeta: account},
		&rbacv1.RoleBinding{ObjectMeta: account,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: tenantName, Name: tenantName}}},
		&v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: forbiddenClass}},
	} {
		if err := i.admin.Create(ctx, object); err != nil {
			return nil, err
		}
	}
	if err := i.parley.Identify(ctx, tenantName, manifests.Workload{Namespace: tenantName,
		ServiceAccount: tenantName}); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", i.parley.Kubeconfig(tenantName))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Timeout, config.WarningHandler = -1, callTimeout, rest.NoWarnings{}
	t := &tenant{installation: i, outcomes: map[string]*attackOutcomes{}}
	if t.api, err = client.New(config, client.Options{Scheme: i.admin.Scheme()}); err != nil {
		return nil, err
	}
	// The API server needs a moment until the role edit has Parley's kinds.
	if err := cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		return t.api.List(ctx, &v1alpha1.ConversationList{}, client.InNamespace(tenantName))
	}); err != nil {
		return nil, err
	}
	if t.http, err = i.createPerson(ctx, i.admin, tenantName, tenantName, model); err != nil {
		return nil, err
	}
	return t, t.prepare(ctx)
}

// prepare starts a session that stays, and one that ends.
func (t *tenant) prepare(ctx context.Context) error {
	for _, name := range []string{target, ended} {
		if err := t.api.Create(ctx, t.conversation(name)); err != nil {
			return err
		}
		if err := t.awaitRunning(ctx, name); err != nil {
			return err
		}
		if err := t.message(ctx, name, largeOutputMessage); err != nil {
			return err
		}
	}
	return t.patch(ctx, t.conversation(ended), `{"spec":{"suspend":true}}`)
}

func (t *tenant) awaitRunning(ctx context.Context, name string) error {
	return cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		c := t.conversation(name)
		if err := t.api.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if c.Status.State != v1alpha1.StateRunning {
			return fmt.Errorf("the Conversation %s is %s, %s", name, c.Status.State, c.Status.Reason)
		}
		return nil
	})
}

// begin starts all attacks. The returned function ends them.
func (t *tenant) begin(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, a := range attacks {
		for caller := range a.atOnce {
			all.Go(func() {
				for n := caller; ctx.Err() == nil; n += a.atOnce {
					began := time.Now()
					err := a.do(ctx, t, n)
					if ctx.Err() == nil {
						t.count(a.name, err, time.Since(began))
					}
					_ = cluster.Sleep(ctx, a.every)
				}
			})
		}
	}
	return func() { cancel(); all.Wait() }
}

func (t *tenant) count(name string, err error, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.outcomes[name]
	if o == nil {
		o = &attackOutcomes{}
		t.outcomes[name] = o
	}
	o.longest = max(o.longest, took)
	switch {
	case err == nil:
		o.accepted++
		return
	case isRefusal(err):
		o.refused++
	default:
		o.failed++
	}
	o.words = err.Error()
}

// isRefusal reports whether a server understood a request and refused it.
func isRefusal(err error) bool {
	if refusal, ok := errors.AsType[*parley.Refusal](err); ok {
		return refusal.Code < http.StatusInternalServerError || refusal.Code == http.StatusServiceUnavailable
	}
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

// print prints the number of calls of each attack.
func (t *tenant) print(out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	_, _ = fmt.Fprintln(w, "\nattack\taccepted\trefused\tfailed\tlongest\tlast refusal or failure")
	for _, a := range attacks {
		if o := t.outcomes[a.name]; o != nil {
			_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%.70q\n", a.name, o.accepted, o.refused, o.failed,
				o.longest.Round(time.Millisecond), o.words)
		} else {
			_, _ = fmt.Fprintf(w, "%s\tnever answered\n", a.name)
		}
	}
}

// check reports sessions of the tenant in a class without a right, and secrets that reached the
// model.
func (t *tenant) check(ctx context.Context, r *report, script *scriptedmodel.Server) error {
	var pods corev1.PodList
	if err := t.installation.admin.List(ctx, &pods, client.InNamespace(tenantName)); err != nil {
		return err
	}
	for i := range pods.Items {
		if pods.Items[i].Labels[v1alpha1.LabelSessionClass] == forbiddenClass {
			r.violation(checkClass, "pod %s has the class %s", pods.Items[i].Name, forbiddenClass)
		}
	}
	r.note(checkClass, "%d pods of the tenant", len(pods.Items))
	requests := script.Requests()
	for _, request := range requests {
		if secretValues(nil).findKey(request.Raw) >= 0 {
			r.violation(checkModel, "a request to the model contains a secret of a user")
		}
	}
	r.note(checkModel, "%d requests", len(requests))
	return nil
}
