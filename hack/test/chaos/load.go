package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// The operations, and the frontends that they use.
const (
	opCreate   = "create"
	opReplay   = "create again"
	opStop     = "stop"
	opStart    = "start"
	opDelete   = "delete"
	opSettings = "settings"
	opRead     = "read"

	frontendAPI  = "API server"
	frontendHTTP = "HTTP"
)

const (
	// A client pauses for a random time, at most this long, between two requests. With warm pods, the
	// limit is longer, because the manager rarely refills the pools while sessions are starting.
	// With short pauses, some session would almost always wait, and the pools would often be empty.
	maxPause, maxPauseWithPools = 250 * time.Millisecond, time.Second
	// A request with an unknown outcome may be in flight for this time. The next request about the
	// same object waits that long, so that the order of the two requests is certain.
	inFlightTime = 2 * time.Second
)

// frontend is one of the two ways to send requests: the API server or a facade.
type frontend interface {
	create(ctx context.Context, t *conversation) answer
	stop(ctx context.Context, t *conversation) answer
	start(ctx context.Context, t *conversation) answer
	delete(ctx context.Context, t *conversation) answer
}

type answer struct {
	outcome outcome
	// missing is set if the object does not exist. early is set if the API server refused the request
	// because its roles were not loaded yet.
	missing, early bool
	// name is the name of the object that was created or found.
	name string
	// message is the reason of a refusal.
	message string
}

// person is one of the clients that send requests for a user. When its context ends, it sends no
// more requests, but waits for requests in flight.
type person struct {
	world  *world
	user   *user
	number int
	random *rand.Rand
	asked  int
	live   []*conversation
}

func (p *person) work(ctx context.Context) {
	pause := maxPause
	if p.world.installation.pool > 0 {
		pause = maxPauseWithPools
	}
	for cluster.Sleep(ctx, time.Duration(p.random.Int64N(int64(pause)))) == nil {
		p.asked++
		dice := p.random.IntN(100)
		switch {
		case dice < 8 && p.number == 0:
			p.user.storeSettings(context.WithoutCancel(ctx), p.world.report, p.asked)
		case dice < 14:
			p.read(context.WithoutCancel(ctx))
		case len(p.live) == 0 || dice < 45 && len(p.live) < maxLive:
			p.create(context.WithoutCancel(ctx))
		default:
			p.change(context.WithoutCancel(ctx), p.live[p.random.IntN(len(p.live))])
		}
	}
}

func (p *person) frontendOf(name string) frontend {
	if name == frontendAPI {
		return p.user.api
	}
	return p.user.http
}

func (p *person) anyFrontend() string { return frontends[p.random.IntN(len(frontends))] }

func (p *person) create(ctx context.Context) {
	label := fmt.Sprintf("%s-%d-%d", p.user.name, p.number, p.asked)
	t := &conversation{user: p.user, frontend: p.anyFrontend(), marker: "do " + label, suspended: possible[bool]{false},
		exists: possible[bool]{false}}
	dice := p.random.IntN(10)
	switch {
	case t.frontend == frontendAPI:
		t.oneShot, t.volume = dice < 3, dice > 7
		t.name = "conversation-" + label
		if t.oneShot {
			t.name = oneShotPrefix + label
		}
	case dice < 4:
		t.id = "conversation-" + label
		t.name = t.id
	case dice < 8:
		t.idempotencyKey = "key-" + p.user.namespace + label
	}
	if t.frontend == frontendHTTP && p.random.IntN(3) == 0 {
		t.toolKey = canary + "-tool-" + label
	}
	p.world.remember(t)
	p.live = append(p.live, t)
	p.ask(ctx, t, opCreate)
}

func (p *person) change(ctx context.Context, t *conversation) {
	if time.Now().Before(t.notBefore) {
		return
	}
	sure := len(t.exists) == 1
	dice := p.random.IntN(100)
	switch {
	case t.deleting:
		p.ask(ctx, t, opDelete)
	case !sure && t.repeatable(), dice < 15 && t.repeatable():
		p.ask(ctx, t, opReplay)
	case t.name == "":
		p.forget(t) // the name of the conversation stays unknown
	case dice < 25:
		p.ask(ctx, t, opDelete)
	case dice < 60:
		p.ask(ctx, t, opStop)
	default:
		p.ask(ctx, t, opStart)
	}
}

// repeatable reports whether a repeated creation returns the same conversation.
func (t *conversation) repeatable() bool {
	return t.frontend == frontendAPI || t.id != "" || t.idempotencyKey != ""
}

func (p *person) forget(t *conversation) {
	p.live = slices.DeleteFunc(p.live, func(other *conversation) bool { return other == t })
}

// ask sends a request, checks the answer, and records which states the conversation may have now.
func (p *person) ask(ctx context.Context, t *conversation, operation string) {
	name := p.anyFrontend()
	if operation == opCreate || operation == opReplay {
		name = t.frontend
	}
	f := p.frontendOf(name)
	do := map[string]func(context.Context, *conversation) answer{opCreate: f.create, opReplay: f.create, opStop: f.stop,
		opStart: f.start, opDelete: f.delete}[operation]
	switch operation {
	case opStart:
		t.starts++
	case opDelete:
		t.deleting = true
	}
	a := do(ctx, t)
	p.world.report.count(name, operation, a.outcome)
	if a.outcome == unknown {
		t.notBefore = time.Now().Add(inFlightTime)
	}
	p.judge(t, operation, a)
	t.learn(operation, a)
	if a.missing || operation == opDelete && a.outcome != unknown {
		p.forget(t)
	}
}

// judge checks a response against the requests that were accepted earlier.
func (p *person) judge(t *conversation, operation string, a answer) {
	creates := operation == opCreate || operation == opReplay
	switch {
	case a.missing && !t.exists.has(false):
		p.world.report.violation(checkLost, "%s was accepted, but not found at its %s", t, operation)
	case a.outcome == refused && !a.missing && !a.early:
		p.world.report.violation(checkLost, "the %s of %s was refused: %s", operation, t, a.message)
	case creates && a.outcome == accepted && t.name != "" && t.name != a.name:
		p.world.report.violation(checkOnce, "the repeated request for %s created %s", t, a.name)
	}
}

// learn records which states the conversation may have after an operation with this answer.
func (t *conversation) learn(operation string, a answer) {
	switch operation {
	case opCreate, opReplay:
		if a.outcome == accepted {
			t.name = a.name
		}
		t.exists.take(true, a.outcome)
	case opDelete:
		t.exists.take(false, a.outcome)
	case opStop:
		t.suspended.take(true, a.outcome)
	case opStart:
		t.suspended.take(false, a.outcome)
	}
}

func (p *person) read(ctx context.Context) {
	o := p.user.http.read(ctx, []string{"/api/conversations", "/api/settings", "/api/secrets"}[p.random.IntN(3)])
	p.world.report.count(frontendHTTP, opRead, o)
}

// storeSettings uses both frontends: it stores keys and a name over HTTP, and a number directly in
// the API server.
func (u *user) storeSettings(ctx context.Context, r *report, number int) outcome {
	u.mu.Lock()
	defer u.mu.Unlock()
	key, secret := fmt.Sprintf("%s-key-%s-%s-%d", canary, u.namespace, u.name, number), fmt.Sprintf("%s-secret-%s-%s-%d",
		canary, u.namespace, u.name, number)
	gitName, iterations := fmt.Sprintf("%s the %dth", u.name, number), int32(number+1)
	over := u.http.storeSettings(ctx, key, secret, gitName)
	r.count(frontendHTTP, opSettings, over.outcome)
	u.settings.key.take(key, over.outcome)
	u.settings.secret.take(secret, over.outcome)
	u.settings.gitName.take(gitName, over.outcome)
	direct := u.api.setIterations(ctx, u, iterations)
	r.count(frontendAPI, opSettings, direct.outcome)
	u.settings.iterations.take(iterations, direct.outcome)
	for _, a := range []answer{over, direct} {
		if a.outcome == refused && !a.early {
			r.violation(checkLost, "the settings of %s/%s were refused: %s", u.namespace, u.name, a.message)
		}
	}
	if direct.outcome != accepted {
		return direct.outcome
	}
	return over.outcome
}
