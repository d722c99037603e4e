package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// What is asked for, and over which face.
const (
	opCreate   = "create"
	opReplay   = "create again"
	opStop     = "stop"
	opStart    = "start"
	opDelete   = "delete"
	opSettings = "settings"
	opRead     = "read"

	faceAPI  = "API server"
	faceHTTP = "HTTP"
)

const (
	// thinking is the longest pause between two requests of a client.
	thinking = 250 * time.Millisecond
	// underWay is how long something of which nobody knows the outcome may still be under way. The
	// next request about the same object waits for that, else it could be overtaken.
	underWay = 2 * time.Second
)

// face is one of the two ways to ask.
type face interface {
	create(ctx context.Context, t *talk) answer
	stop(ctx context.Context, t *talk) answer
	start(ctx context.Context, t *talk) answer
	delete(ctx context.Context, t *talk) answer
}

// answer to a request.
type answer struct {
	outcome outcome
	// missing: there is no such object. early: the API server does not know yet who may do what.
	missing, early bool
	// name of what was created or found.
	name string
	// words of a refusal.
	words string
}

// person is one client of a user. Its context ends its work, not what it asked for.
type person struct {
	world  *world
	user   *user
	number int
	random *rand.Rand
	asked  int
	live   []*talk
}

func (p *person) work(ctx context.Context) {
	for pause(ctx, time.Duration(p.random.Int64N(int64(thinking)))) == nil {
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

func (p *person) faceOf(name string) face {
	if name == faceAPI {
		return p.user.api
	}
	return p.user.http
}

func (p *person) anyFace() string { return faces[p.random.IntN(len(faces))] }

func (p *person) create(ctx context.Context) {
	label := fmt.Sprintf("%s-%d-%d", p.user.name, p.number, p.asked)
	t := &talk{user: p.user, face: p.anyFace(), marker: "do " + label, suspended: possible[bool]{false},
		exists: possible[bool]{false}}
	dice := p.random.IntN(10)
	switch {
	case t.face == faceAPI:
		t.oneShot, t.volume = dice < 3, dice > 7
		t.name = "talk-" + label
		if t.oneShot {
			t.name = once + label
		}
	case dice < 4:
		t.id = "talk-" + label
		t.name = t.id
	case dice < 8:
		t.idempotencyKey = "key-" + p.user.namespace + label
	}
	if t.face == faceHTTP && p.random.IntN(3) == 0 {
		t.toolKey = canary + "-tool-" + label
	}
	p.world.remember(t)
	p.live = append(p.live, t)
	p.ask(ctx, t, opCreate)
}

// change a conversation, or ask for it again.
func (p *person) change(ctx context.Context, t *talk) {
	if time.Now().Before(t.notBefore) {
		return
	}
	sure := len(t.exists) == 1
	dice := p.random.IntN(100)
	switch {
	case t.leaving:
		p.ask(ctx, t, opDelete)
	case !sure && t.canBeAskedAgain(), dice < 15 && t.canBeAskedAgain():
		p.ask(ctx, t, opReplay)
	case t.name == "":
		p.forget(t) // nobody will ever know its name
	case dice < 25:
		p.ask(ctx, t, opDelete)
	case dice < 60:
		p.ask(ctx, t, opStop)
	default:
		p.ask(ctx, t, opStart)
	}
}

// canBeAskedAgain: the same request is about the same conversation.
func (t *talk) canBeAskedAgain() bool {
	return t.face == faceAPI || t.id != "" || t.idempotencyKey != ""
}

func (p *person) forget(t *talk) {
	p.live = slices.DeleteFunc(p.live, func(other *talk) bool { return other == t })
}

// ask for something, and take note of what may be so now.
func (p *person) ask(ctx context.Context, t *talk, operation string) {
	name := p.anyFace()
	if operation == opCreate || operation == opReplay {
		name = t.face
	}
	f := p.faceOf(name)
	do := map[string]func(context.Context, *talk) answer{opCreate: f.create, opReplay: f.create, opStop: f.stop,
		opStart: f.start, opDelete: f.delete}[operation]
	switch operation {
	case opStart:
		t.starts++
	case opDelete:
		t.leaving = true
	}
	a := do(ctx, t)
	p.world.report.count(name, operation, a.outcome)
	if a.outcome == unknown {
		t.notBefore = time.Now().Add(underWay)
	}
	p.judge(t, operation, a)
	t.learn(operation, a)
	if a.missing || operation == opDelete && a.outcome != unknown {
		p.forget(t)
	}
}

// judge an answer by what was accepted before.
func (p *person) judge(t *talk, operation string, a answer) {
	creates := operation == opCreate || operation == opReplay
	switch {
	case a.missing && !t.exists.has(false):
		p.world.report.broke(checkLost, "%s was accepted, and at its %s it was not there", t, operation)
	case a.outcome == refused && !a.missing && !a.early:
		p.world.report.broke(checkLost, "the %s of %s was refused: %s", operation, t, a.words)
	case creates && a.outcome == accepted && t.name != "" && t.name != a.name:
		p.world.report.broke(checkOnce, "%s was asked for again and is now %s", t, a.name)
	}
}

// learn from an answer what may be so now.
func (t *talk) learn(operation string, a answer) {
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

// read what there is, and look for keys in it.
func (p *person) read(ctx context.Context) {
	o := p.user.http.read(ctx, []string{"/api/conversations", "/api/settings", "/api/secrets"}[p.random.IntN(3)])
	p.world.report.count(faceHTTP, opRead, o)
}

// storeSettings over both faces: keys and a name over HTTP, a number over the API server.
func (u *user) storeSettings(ctx context.Context, r *report, number int) outcome {
	u.mu.Lock()
	defer u.mu.Unlock()
	key, secret := fmt.Sprintf("%s-key-%s-%s-%d", canary, u.namespace, u.name, number), fmt.Sprintf("%s-secret-%s-%s-%d",
		canary, u.namespace, u.name, number)
	gitName, iterations := fmt.Sprintf("%s the %dth", u.name, number), int32(number+1)
	over := u.http.storeSettings(ctx, key, secret, gitName)
	r.count(faceHTTP, opSettings, over.outcome)
	u.settings.key.take(key, over.outcome)
	u.settings.secret.take(secret, over.outcome)
	u.settings.gitName.take(gitName, over.outcome)
	direct := u.api.setIterations(ctx, u, iterations)
	r.count(faceAPI, opSettings, direct.outcome)
	u.settings.iterations.take(iterations, direct.outcome)
	for _, a := range []answer{over, direct} {
		if a.outcome == refused && !a.early {
			r.broke(checkLost, "the settings of %s/%s were refused: %s", u.namespace, u.name, a.words)
		}
	}
	if direct.outcome != accepted {
		return direct.outcome
	}
	return over.outcome
}
