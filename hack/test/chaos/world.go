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
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	// callTimeout is longer than any server takes, so that an outcome is unknown only where a
	// connection broke.
	callTimeout = 30 * time.Second
	// clientsPerUser work at once, each with conversations of its own: so the last write of each is
	// known.
	clientsPerUser = 2
	// maxLive are the conversations of a client. Those of a user are more than a class lets run at
	// once.
	maxLive = 7
	// settle is how long it may take until all is as it was asked for.
	settle         = 2 * time.Minute
	settleInterval = 500 * time.Millisecond
)

var (
	namespaces = []string{"chaos-a", "chaos-b"}
	userNames  = []string{"ada", "ben"}
)

// world is all users, and what they were told.
type world struct {
	installation *installation
	report       *report
	random       func(stream uint64) *rand.Rand
	users        []*user

	mu    sync.Mutex
	talks []*talk
}

// user has one UserSettings, and asks over both faces.
type user struct {
	namespace, name string
	api             *apiFace
	http            *httpFace

	mu       sync.Mutex
	settings settingsModel
}

// settingsModel is what the settings may be: the value that was accepted last, and those since of
// which nobody knows.
type settingsModel struct {
	key, secret, gitName possible[string]
	iterations           possible[int32]
}

// possible values of something.
type possible[T comparable] []T

// take a value that was written with an outcome.
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

// talk is a conversation as its client knows it.
type talk struct {
	user *user
	// name is empty while nobody said what it is.
	name string
	// marker is the first message, which no other has.
	marker  string
	face    string
	oneShot bool
	volume  bool
	// id is given by the client, idempotencyKey sent with the request; one that has neither cannot
	// be asked for again.
	id, idempotencyKey string
	// toolKey is a key that comes with it.
	toolKey string

	exists, suspended possible[bool]
	// leaving: its deletion was asked for. To ask for it again would make another one.
	leaving bool
	// starts that were accepted, or may have been.
	starts int
	// notBefore is when nothing that was asked before can still be under way.
	notBefore time.Time
}

func (t *talk) String() string {
	return fmt.Sprintf("%s/%s (%q by %s over %s)", t.user.namespace, t.name, t.marker, t.user.name, t.face)
}

// newWorld makes the users and waits for their keys.
func newWorld(ctx context.Context, i *installation, seed uint64, r *report) (*world, error) {
	w := &world{installation: i, report: r, random: func(stream uint64) *rand.Rand {
		return rand.New(rand.NewPCG(seed,
			stream))
	}}
	api, err := client.New(i.peopleConf, client.Options{Scheme: i.admin.Scheme()})
	if err != nil {
		return nil, err
	}
	for _, namespace := range namespaces {
		if err := i.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			return nil, err
		}
		for _, name := range userNames {
			u := &user{namespace: namespace, name: name, api: &apiFace{client: api}}
			if err := w.welcome(ctx, u); err != nil {
				return nil, fmt.Errorf("user %s/%s: %w", namespace, name, err)
			}
			w.users = append(w.users, u)
		}
	}
	return w, nil
}

// welcome a user: settings, the key that the operator makes for them, and a model to begin with.
func (w *world) welcome(ctx context.Context, u *user) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	err := manifests.Persist(ctx, func(ctx context.Context) error {
		settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: u.name}}
		return client.IgnoreAlreadyExists(u.api.client.Create(ctx, settings))
	})
	if err != nil {
		return err
	}
	secret := &corev1.Secret{}
	err = manifests.Persist(ctx, func(ctx context.Context) error {
		return w.installation.admin.Get(ctx, client.ObjectKey{Namespace: u.namespace,
			Name: v1alpha1.SessionKeySecretName(u.name)}, secret)
	})
	if err != nil {
		return err
	}
	key := secret.Data[v1alpha1.SessionKeySecretKey]
	w.report.knowKeys(key)
	u.http = newHTTPFace(w.installation.facadeURL(), string(key), w.report)
	return manifests.Persist(ctx, func(ctx context.Context) error {
		// Until the facades have heard of the key they refuse it.
		first := newReport()
		if u.storeSettings(ctx, first, 0) != accepted {
			return fmt.Errorf("the settings are not stored yet: %v", first.problems[checkLost])
		}
		return nil
	})
}

func (w *world) remember(t *talk) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.talks = append(w.talks, t)
}

// load is clients at work.
type load struct {
	cancel  context.CancelFunc
	clients sync.WaitGroup
}

// begin to use Parley.
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

// stop, and wait for the answers that are under way.
func (l *load) stop() {
	l.cancel()
	l.clients.Wait()
}
