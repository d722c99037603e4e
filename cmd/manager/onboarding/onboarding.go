package onboarding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/cmd/internal/limits"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,namespace=parley-system,resources=events,verbs=create

const (
	// maxEntries is the largest number of entries for one person.
	maxEntries = 32
	// Each problem is reported at most once per reportInterval, unless the ConfigMap changes.
	reportInterval = 10 * time.Minute
	// maxReports is the largest number of problems that are reported in an interval.
	maxReports = 1000
)

// These constants are the values of the label "outcome" in the metric parley_onboarding_total.
const (
	outcomeCreated      = "created"
	outcomeExisting     = "existing"
	outcomeProblem      = "problem"
	outcomeUnauthorized = "unauthorized"
	outcomeUnavailable  = "unavailable"
)

var outcomes = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "parley_onboarding_total",
	Help: "Onboardings by outcome: created, existing, problem, unauthorized or unavailable.",
}, []string{"outcome"})

func init() { metrics.Registry.MustRegister(outcomes) }

// Options identify the ConfigMap and the namespaces.
type Options struct {
	// Namespace is the namespace of the operator and of the ConfigMap.
	Namespace, ConfigMap string
	// Namespaces are the namespaces that the operator watches; empty means all.
	Namespaces []string
}

// Onboarder creates UserSettings for people.
type Onboarder struct {
	options  Options
	provider *identity.Provider
	client   client.Client
	live     client.Reader // bypasses the cache
	recorder events.EventRecorder
	persons  *limits.Budget // limits the requests of one person
	slots    chan struct{}  // limits the requests in progress

	mu      sync.Mutex
	version version
	config  config
	// reported are the problems that were reported since the last reset.
	reported   sets.Set[string]
	resetAfter time.Time
}

// version identifies the contents of an object.
type version struct {
	uid             types.UID
	resourceVersion string
}

// New returns an Onboarder that uses the clients of the manager.
func New(mgr ctrl.Manager, provider *identity.Provider, options Options) *Onboarder {
	return newOnboarder(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("parley"), provider, options)
}

func newOnboarder(c client.Client, live client.Reader, recorder events.EventRecorder, provider *identity.Provider,
	options Options) *Onboarder {
	return &Onboarder{
		options: options, provider: provider, client: c, live: live, recorder: recorder,
		persons: limits.New(limits.Options{Rate: personRate, Burst: personBurst}),
		slots:   make(chan struct{}, maxInProgress),
	}
}

// Settings identifies a UserSettings object.
type Settings struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Answer is the result of an onboarding.
type Answer struct {
	// Settings are the UserSettings that the person may use.
	Settings []Settings `json:"settings"`
	// Problems are sentences for the person.
	Problems []string `json:"problems"`
}

// Onboard creates the UserSettings for the entries of the person's groups. It skips entries with a
// problem.
func (o *Onboarder) Onboard(ctx context.Context, person *identity.Person) (*Answer, error) {
	configMap, parsed, err := o.read(ctx)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Settings: []Settings{}, Problems: []string{}}
	fail := func(err error) {
		answer.Problems = append(answer.Problems, err.Error())
		o.report(ctx, configMap, err)
	}
	for i, e := range parsed.entriesOf(person) {
		if i == maxEntries {
			fail(fmt.Errorf("the ConfigMap has more than %d entries for one person; further entries are ignored", maxEntries))
			break
		}
		if e.problem != "" {
			fail(errors.New(e.problem))
			continue
		}
		wanted := build(person, o.provider.Options.UsernamePrefix, &e)
		created, err := o.ensure(ctx, wanted, person)
		switch {
		case err != nil:
			fail(fmt.Errorf("group %s, namespace %s: %w", e.Group, e.Namespace, err))
			continue
		case created:
			logf.FromContext(ctx).Info("Created UserSettings", "namespace", wanted.Namespace, "name", wanted.Name,
				"owner", person.Username, "group", e.Group)
			outcomes.WithLabelValues(outcomeCreated).Inc()
		default:
			outcomes.WithLabelValues(outcomeExisting).Inc()
		}
		answer.Settings = append(answer.Settings, Settings{wanted.Namespace, wanted.Name})
	}
	return answer, nil
}

func (c config) entriesOf(person *identity.Person) (entries []entry) {
	for _, group := range slices.Compact(slices.Sorted(slices.Values(person.Groups))) {
		entries = append(entries, c.byGroup[group]...)
	}
	return entries
}

// read parses each version of the ConfigMap one time, and reports the problems of all entries. A
// missing ConfigMap has no entries.
func (o *Onboarder) read(ctx context.Context) (*corev1.ConfigMap, config, error) {
	configMap := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: o.options.Namespace, Name: o.options.ConfigMap}
	if err := o.live.Get(ctx, key, configMap); apierrors.IsNotFound(err) {
		return configMap, config{}, nil
	} else if err != nil {
		return nil, config{}, fmt.Errorf("read the ConfigMap %s: %w", o.options.ConfigMap, err)
	}
	o.mu.Lock()
	current := version{configMap.UID, configMap.ResourceVersion}
	fresh := o.version != current
	if fresh {
		o.version, o.reported = current, nil
		o.config = parse(configMap.Data[configKey], entryLimits{o.provider.Options.GroupsPrefix, o.options.Namespace,
			o.options.Namespaces})
	}
	parsed := o.config
	o.mu.Unlock()
	if fresh {
		for _, text := range parsed.problems {
			o.report(ctx, configMap, errors.New(text))
		}
	}
	return configMap, parsed, nil
}

// report counts a problem. If the problem was not reported recently, it also logs the problem and
// emits an event about the ConfigMap.
func (o *Onboarder) report(ctx context.Context, configMap *corev1.ConfigMap, err error) {
	outcomes.WithLabelValues(outcomeProblem).Inc()
	text := err.Error()
	if cause := causeOf(err); cause != nil {
		text += ": " + cause.Error()
	}
	if !o.reportNow(text) {
		return
	}
	logf.FromContext(ctx).Info("Onboarding failed", "configMap", configMap.Name, "problem", text)
	o.recorder.Eventf(configMap, nil, corev1.EventTypeWarning, "OnboardingFailed", "Onboard", "%s",
		lifecycle.Truncate(text, lifecycle.MaxEventNote))
}

func causeOf(err error) error {
	if found, is := errors.AsType[*problem](err); is {
		return found.cause
	}
	return nil
}

func (o *Onboarder) reportNow(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.reported == nil || now.After(o.resetAfter) {
		o.reported, o.resetAfter = sets.New[string](), now.Add(reportInterval)
	}
	if o.reported.Has(text) || len(o.reported) >= maxReports {
		return false
	}
	o.reported.Insert(text)
	return true
}
