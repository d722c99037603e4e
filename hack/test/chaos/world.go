package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	// callTimeout is longer than any server needs for a response. An outcome is therefore unknown
	// only if the connection breaks.
	callTimeout = 30 * time.Second
	// clientsPerUser is the number of concurrent clients of a user. Each client has its own
	// conversations, so that the last write to each conversation is known.
	clientsPerUser = 2
	// maxLive limits the conversations of a client. It is so high that a user's clients together can
	// exceed the class's limit of running sessions.
	maxLive        = 7
	settleTimeout  = 2 * time.Minute
	settleInterval = 500 * time.Millisecond
)

var (
	namespaces = []string{"chaos-a", "chaos-b"}
	userNames  = []string{"ada", "ben"}
)

// world holds all users and the answers that they got.
type world struct {
	installation *installation
	report       *report
	bound        *binds
	random       func(stream uint64) *rand.Rand
	users        []*user

	mu        sync.Mutex
	requested []*conversation
}

// user has one UserSettings, and uses both frontends.
type user struct {
	namespace, name string
	api             *apiFrontend
	http            *httpFrontend

	mu       sync.Mutex
	settings settingsModel
}

// settingsModel holds the values that each setting may have: the last accepted value, and every
// later value with an unknown outcome.
type settingsModel struct {
	key, secret, gitName possible[string]
	iterations           possible[int32]
}

// possible lists the values that a field may have.
type possible[T comparable] []T

// take updates the possible values after a write of this value had this outcome.
func (p *possible[T]) take(value T, o outcome) {
	switch o {
	case accepted:
		*p = possible[T]{value}
	case unknown:
		*p = append(*p, value)
	case refused:
	}
}

func (p possible[T]) has(value T) bool { return slices.Contains(p, value) }

// conversation is the state of a conversation as far as its client knows.
type conversation struct {
	user *user
	// name is empty until an answer contains it.
	name string
	// marker is the unique first message.
	marker   string
	frontend string
	oneShot  bool
	volume   bool
	// An HTTP request that creates a conversation can be repeated only if it has an ID or an
	// idempotency key.
	id, idempotencyKey string
	// toolKey is the key of the conversation's tool server.
	toolKey string

	exists, suspended possible[bool]
	// deleting is set once a deletion was requested. From then on, the client does not repeat the
	// creation, because that could create another conversation.
	deleting bool
	// starts is the number of start requests that were accepted or have an unknown outcome.
	starts int
	// The client sends no request about the conversation before notBefore. Until then, an earlier
	// request with an unknown outcome may still be in flight.
	notBefore time.Time
}

func (t *conversation) String() string {
	return fmt.Sprintf("%s/%s (%q by %s over %s)", t.user.namespace, t.name, t.marker, t.user.name, t.frontend)
}

func newWorld(ctx context.Context, i *installation, seed uint64, r *report) (*world, error) {
	w := &world{installation: i, report: r, random: func(stream uint64) *rand.Rand {
		return rand.New(rand.NewPCG(seed, stream))
	}}
	w.bound = newBinds(r, w.random(1<<32))
	api, err := client.New(i.peopleConf, client.Options{Scheme: i.admin.Scheme()})
	if err != nil {
		return nil, err
	}
	for _, namespace := range namespaces {
		if err := i.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			return nil, err
		}
		for _, name := range userNames {
			u := &user{namespace: namespace, name: name, api: &apiFrontend{client: api}}
			if err := w.createUser(ctx, u); err != nil {
				return nil, fmt.Errorf("user %s/%s: %w", namespace, name, err)
			}
			w.users = append(w.users, u)
		}
	}
	return w, nil
}

// createUser creates the user's settings, waits for the session key that the operator generates,
// and stores a model over HTTP.
func (w *world) createUser(ctx context.Context, u *user) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := manifests.Persist(ctx, func(ctx context.Context) error {
		settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: u.name}}
		return client.IgnoreAlreadyExists(u.api.client.Create(ctx, settings))
	})
	if err != nil {
		return err
	}
	var key string
	err = manifests.Persist(ctx, func(ctx context.Context) (err error) {
		key, err = parley.SessionKey(ctx, w.installation.admin, client.ObjectKey{Namespace: u.namespace, Name: u.name})
		return err
	})
	if err != nil {
		return err
	}
	w.report.addKeys([]byte(key))
	u.http = newHTTPFrontend(w.installation.facadeURL(), key, w.report)
	return manifests.Persist(ctx, func(ctx context.Context) error {
		// The facades refuse the key until they know it, so Persist repeats this function. These
		// refusals are not violations, so they go to a report that is not used otherwise.
		first := newReport()
		if u.storeSettings(ctx, first, 0) != accepted {
			return fmt.Errorf("could not store the settings yet: %v", first.problems[checkLost])
		}
		return nil
	})
}

func (w *world) remember(t *conversation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requested = append(w.requested, t)
}

// load is a set of clients that send requests until they are stopped.
type load struct {
	cancel  context.CancelFunc
	clients sync.WaitGroup
}

func (w *world) begin(ctx context.Context) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	stream := uint64(1)
	for _, u := range w.users {
		for n := range clientsPerUser {
			p := &person{world: w, user: u, number: n, random: w.random(stream)}
			stream++
			l.clients.Go(func() { p.work(ctx) })
		}
	}
	return l
}

// stop ends the clients and waits for requests in flight.
func (l *load) stop() {
	l.cancel()
	l.clients.Wait()
}
