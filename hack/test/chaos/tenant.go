package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const (
	// tenantName is the name of the tenant's namespace, account and settings.
	tenantName = "mallory"
	// The tenant has no right to use the class forbiddenClass. It may use limitedClass, which limits
	// the lifetimes of sessions, and the default class, which allows any lifetime.
	forbiddenClass, limitedClass = "administrators", "limited"
	// target is the name of a running conversation of the tenant. ended is the name of a suspended
	// conversation, whose events are archived.
	target, ended = "target", "ended"
	// The messages to which the stub model answers with a command.
	printSecretsMessage, largeOutputMessage = "PRINT SECRETS", "LARGE OUTPUT"
)

// tenant is a user who has the rights of the ClusterRole "edit" in one namespace, and no other
// rights.
type tenant struct {
	api    client.Client
	http   *httpFrontend
	report *report

	mu       sync.Mutex
	outcomes map[string]*attackOutcomes
	// calls counts the calls, by attack and caller.
	calls map[string]int
}

// attackOutcomes counts the outcomes of an attack's calls.
type attackOutcomes struct {
	Accepted, Refused, Failed int
	Longest                   time.Duration
	LastRefusal               string // text of the last refusal or failure
}

// attack is one way to hurt others. do() is called again and again, with the index of
// the call.
type attack struct {
	name string
	// every is the pause after each call. atOnce is the number of concurrent callers.
	every  time.Duration
	atOnce int
	do     func(ctx context.Context, t *tenant, n int) error
}

// newTenantScript returns a model that answers two messages with a command. One command prints
// secrets, and the other command prints a large output. The model answers all other messages with a
// short text.
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
	return scriptedmodel.New(scriptedmodel.Script{Default: "Done.", Steps: []scriptedmodel.Step{
		on(printSecretsMessage, "env; set; cat /proc/self/environ; ls /proc/1/environ"),
		on(largeOutputMessage, "head -c 4000000 /dev/zero | tr '\\0' x"),
	}})
}

// newTenant connects with the account of the tenant. It creates the tenant's settings, and the
// conversations that the attacks use.
func newTenant(ctx context.Context, admin client.Client, o tenantOptions, facadeURL, model string,
	r *report) (*tenant, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Timeout, config.WarningHandler = -1, callTimeout, rest.NoWarnings{}
	t := &tenant{report: r, outcomes: map[string]*attackOutcomes{}, calls: map[string]int{}}
	if t.api, err = client.New(config, client.Options{Scheme: admin.Scheme()}); err != nil {
		return nil, err
	}
	// Some time passes until the ClusterRole "edit" contains the rights on Parley's kinds.
	if err := cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		return t.api.List(ctx, &v1alpha1.ConversationList{}, client.InNamespace(tenantName))
	}); err != nil {
		return nil, err
	}
	if t.http, err = createPerson(ctx, admin, admin, facadeURL, &user{namespace: tenantName, name: tenantName},
		model, r); err != nil {
		return nil, err
	}
	return t, t.prepare(ctx)
}

// prepare starts two sessions and suspends one of them, the session "ended".
func (t *tenant) prepare(ctx context.Context) error {
	for _, name := range []string{target, ended} {
		if err := t.api.Create(ctx, t.conversation(name)); err != nil {
			return err
		}
		if err := t.awaitRunning(ctx, name); err != nil {
			return err
		}
		// The facade may learn a moment later than this client that the session runs.
		if err := cluster.Retry(ctx, 100*time.Millisecond, func(ctx context.Context) error {
			return t.message(ctx, name, largeOutputMessage)
		}); err != nil {
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

// begin starts the attacks whose names match the regular expression. The returned function ends the
// attacks.
func (t *tenant) begin(ctx context.Context, selected *regexp.Regexp) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, a := range attacks {
		if !selected.MatchString(a.name) {
			continue
		}
		for caller := range a.atOnce {
			all.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					err := a.do(ctx, t, t.nextCall(a, caller))
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

// nextCall returns the index of the caller's next call. The callers of an attack get different
// indexes.
func (t *tenant) nextCall(a attack, caller int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := fmt.Sprint(a.name, caller)
	n := t.calls[key]
	t.calls[key]++
	return n*a.atOnce + caller
}

func (t *tenant) count(name string, err error, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.outcomes[name]
	if o == nil {
		o = &attackOutcomes{}
		t.outcomes[name] = o
	}
	o.Longest = max(o.Longest, took)
	switch {
	case err == nil:
		o.Accepted++
		return
	case isRefusal(err):
		o.Refused++
	default:
		o.Failed++
	}
	o.LastRefusal = err.Error()
}

// isRefusal reports whether a server understood a request and refused it.
func isRefusal(err error) bool {
	if refusal, ok := errors.AsType[*parley.Refusal](err); ok {
		return refusal.Code < http.StatusInternalServerError || refusal.Code == http.StatusServiceUnavailable
	}
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}
