package controllers

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/calls"
	"github.com/parley-dev/parley/controllers/queue"
)

const (
	// A round asks idle sessions of one user to end. minLeaveDelay and maxLeaveDelay limit the
	// delay between two rounds.
	minLeaveDelay, maxLeaveDelay = 3 * time.Second, 30 * time.Second
	// leaveCallTimeout limits one call, and leaveRoundTimeout limits all calls of a round.
	leaveCallTimeout  = 3 * time.Second
	leaveRoundTimeout = 15 * time.Second
	// maxLeaveCalls limits the concurrent calls of a round, and maxLeaveRounds the concurrent
	// rounds.
	maxLeaveCalls, maxLeaveRounds = 8, 16
	// leaveTimeout limits how long the manager waits for the end of a session that agreed to end.
	// Before its end, the session hands over its data; its last snapshot may take 5 minutes.
	leaveTimeout = 6 * time.Minute
	// minIdleTime is how long a session must have been idle before it is asked to end.
	minIdleTime = 3 * time.Second
	// leaveTokenTTL is the validity of a token for a call to a session. It is much longer than the
	// call, because the clocks of the manager and the session may differ.
	leaveTokenTTL = 5 * time.Minute
	maxLeaveReply = 4 << 10
)

// leaver asks idle sessions to end while another session of their user waits for a slot.
type leaver struct {
	queue       *queue.Queue
	cache       client.Reader
	clock       clock.PassiveClock
	pool        *calls.Pool
	token       func(ctx context.Context, uid string) (string, error)
	authorities func(ctx context.Context) (*x509.CertPool, error)
	// noted wakes up Start() after a change of the field users.
	noted chan struct{}

	mu    sync.Mutex
	users map[types.NamespacedName]*leaveRounds
	// leaving contains the sessions that agreed to end.
	leaving map[types.NamespacedName]leavingAttempt
}

// leavingAttempt is the attempt of a session that agreed to end, and the time of the agreement.
type leavingAttempt struct {
	uid     types.UID
	attempt int32
	since   time.Time
}

// leaveRounds describes the rounds of one user, in which idle sessions are asked to end: the times
// of the last and the next round, and the delay after the next round.
type leaveRounds struct {
	last, next time.Time
	delay      time.Duration
}

func newLeaver(q *queue.Queue, g *gatherer) *leaver {
	return &leaver{queue: q, cache: g.cache, clock: g.options.Clock, pool: calls.New(maxLeaveRounds), token: g.leaveToken,
		authorities: g.sessionAuthorities, noted: make(chan struct{}, 1), users: map[types.NamespacedName]*leaveRounds{},
		leaving: map[types.NamespacedName]leavingAttempt{}}
}

// note registers that a session of the user waits for a slot. isNew is set if the session has just
// begun to wait.
func (l *leaver) note(user types.NamespacedName, isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rounds := l.users[user]
	switch {
	case rounds == nil:
		l.users[user] = &leaveRounds{next: l.clock.Now(), delay: minLeaveDelay}
	case isNew && rounds.delay > minLeaveDelay:
		rounds.next, rounds.delay = rounds.last.Add(minLeaveDelay), minLeaveDelay
	default:
		return
	}
	select {
	case l.noted <- struct{}{}:
	default:
	}
}

// Start runs the rounds of all users until ctx ends. Only the leading manager runs rounds.
func (l *leaver) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		due, wait := l.due()
		for user, first := range due {
			l.pool.Go(ctx, user.String(), first, func(ctx context.Context) { l.makeRoom(ctx, user) })
		}
		select {
		case <-l.noted:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// due returns the users whose next round is due, and the first waiting session of each of these
// users. It also returns the time until the next round of any user, at most maxLeaveDelay.
func (l *leaver) due() (due map[types.NamespacedName]types.NamespacedName, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	due, wait = map[types.NamespacedName]types.NamespacedName{}, maxLeaveDelay
	for user, rounds := range l.users {
		if !rounds.next.After(now) {
			room := l.queue.Room(user, l.leaves)
			if !room.Waits {
				delete(l.users, user)
				continue
			}
			due[user] = room.First
			rounds.last, rounds.next = now, now.Add(rounds.delay)
			rounds.delay = min(2*rounds.delay, maxLeaveDelay)
		}
		wait = min(wait, rounds.next.Sub(now))
	}
	return due, wait
}

// leaves reports whether the current attempt of a session agreed to end. l.mu must be locked.
func (l *leaver) leaves(name types.NamespacedName) bool {
	agreed, found := l.leaving[name]
	if !found || l.clock.Since(agreed.since) >= leaveTimeout {
		return false
	}
	c := &v1alpha1.Conversation{}
	err := l.cache.Get(context.Background(), name, c) // needs no deadline: the cache sends no request
	return err == nil && c.UID == agreed.uid && c.Status.Attempt == agreed.attempt
}

// idleSession is a running session, and the number of seconds for which it has been idle.
type idleSession struct {
	*v1alpha1.Conversation
	seconds float64
}

// makeRoom asks idle sessions of a user to end, the longest idle first, until enough sessions have
// agreed.
func (l *leaver) makeRoom(ctx context.Context, user types.NamespacedName) {
	ctx, cancel := context.WithTimeout(ctx, leaveRoundTimeout)
	defer cancel()
	l.forgetEnded()
	l.mu.Lock()
	room := l.queue.Room(user, l.leaves)
	l.mu.Unlock()
	if room.Needed == 0 {
		return
	}
	log := ctrl.LoggerFrom(ctx).WithName("leave")
	for _, idle := range l.idle(ctx, room.Running) {
		if ctx.Err() != nil {
			return // the next round asks other sessions
		}
		_, err := l.call(ctx, http.MethodPost, idle.Conversation)
		// If the call timed out, the session may nevertheless have agreed to end.
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			continue // the session is busy again, or has ended
		}
		l.mu.Lock()
		l.leaving[client.ObjectKeyFromObject(idle)] = leavingAttempt{idle.UID, idle.Status.Attempt, l.clock.Now()}
		l.mu.Unlock()
		log.Info("An idle session gives up its slot to a waiting session", "conversation",
			client.ObjectKeyFromObject(idle), "waiting", room.First)
		if room.Needed--; room.Needed == 0 {
			return
		}
	}
}

// forgetEnded forgets the sessions that agreed to end and have no slot any more.
func (l *leaver) forgetEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.leaving {
		if !l.leaves(name) || !l.queue.Has(name) {
			delete(l.leaving, name)
		}
	}
}

// idle asks each named session how long it has been idle. It returns the idle sessions, the longest
// idle first. A session that does not answer, for example because it has a third-party runtime,
// counts as busy.
func (l *leaver) idle(ctx context.Context, names []types.NamespacedName) []idleSession {
	var mu sync.Mutex
	var found []idleSession
	var group errgroup.Group
	group.SetLimit(maxLeaveCalls)
	for _, name := range names {
		c := &v1alpha1.Conversation{}
		if l.cache.Get(ctx, name, c) != nil || c.Status.State != v1alpha1.StateRunning || c.DeletionTimestamp != nil {
			continue
		}
		group.Go(func() error {
			leave, err := l.call(ctx, http.MethodGet, c)
			if err == nil && leave.Idle && leave.IdleSeconds >= minIdleTime.Seconds() {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, idleSession{c, leave.IdleSeconds})
			}
			return nil
		})
	}
	_ = group.Wait()
	slices.SortFunc(found, func(a, b idleSession) int {
		return cmp.Or(cmp.Compare(b.seconds, a.seconds), cmp.Compare(a.Name, b.Name))
	})
	return found
}

func (l *leaver) call(ctx context.Context, method string, c *v1alpha1.Conversation) (*session.Leave, error) {
	ctx, cancel := context.WithTimeout(ctx, leaveCallTimeout)
	defer cancel()
	address := net.ParseIP(c.Status.PodIP)
	if address == nil {
		return nil, errors.New("the status has no address of the pod")
	}
	target := url.URL{Scheme: "http", Host: net.JoinHostPort(address.String(), strconv.Itoa(session.Port)),
		Path: session.LeavePath}
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10}
	// The scheme of status.url decides whether to use TLS. Only the manager can write this field.
	if strings.HasPrefix(c.Status.URL, "https:") {
		authorities, err := l.authorities(ctx)
		if err != nil {
			return nil, err
		}
		target.Scheme, transport.TLSClientConfig = "https", session.ClientTLS(string(c.UID), authorities)
	}
	token, err := l.token(ctx, string(c.UID))
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the session answered %s", response.Status)
	}
	leave := &session.Leave{}
	return leave, json.NewDecoder(io.LimitReader(response.Body, maxLeaveReply)).Decode(leave)
}

func (g *gatherer) leaveToken(ctx context.Context, uid string) (string, error) {
	return g.signToken(ctx, session.AudienceLeave, uid, leaveTokenTTL)
}

func (g *gatherer) sessionAuthorities(ctx context.Context) (*x509.CertPool, error) {
	keys, _, err := g.signingKeys(ctx)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(keys.authorities)
	return pool, err
}
