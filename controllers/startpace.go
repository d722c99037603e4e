package controllers

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// startBurst is the number of bytes of session Secrets that a user may use for starts at once.
// startRate is the number of bytes per second after that. A namespace may use namespaceFactor times
// as many bytes as a user.
const (
	startBurst      = 4 << 20
	startRate       = 256 << 10
	namespaceFactor = 4
	// startMemory is how long the size of a user's last start is remembered.
	startMemory = 10 * time.Minute
)

// startPace limits how fast the sessions of one user start, by the size of their Secrets. The API
// server reads and writes all bytes of these Secrets. Without a limit, a user who starts many
// sessions with large Secrets would delay the starts of other users. Users can create more
// UserSettings, so the sessions of a namespace have a limit too.
type startPace struct {
	mu sync.Mutex
	// debts is keyed by user. A key without a name stands for its whole namespace.
	debts map[types.NamespacedName]startDebt
}

type startDebt struct {
	// due is when startRate has paid for all starts.
	due time.Time
	// last is the size of the last start. The next start reserves the same size, because its size is
	// known only after its Secrets are read.
	last int
}

// reserve returns how long the next start of the user must wait. If the start need not wait,
// reserve also returns a function that must be called with the size of the session's Secret, or
// with 0 if there is no Secret.
func (p *startPace) reserve(user types.NamespacedName, now time.Time) (settle func(size int), wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.debts, func(_ types.NamespacedName, d startDebt) bool { return now.Sub(d.due) > startMemory })
	namespace := types.NamespacedName{Namespace: user.Namespace}
	// A debt of startBurst bytes is allowed. The debt of a namespace is paid namespaceFactor times as
	// fast, so that the same time stands for namespaceFactor times as many bytes.
	allowed := now.Add(payTime(startBurst))
	wait = max(p.debts[user].due.Sub(allowed), p.debts[namespace].due.Sub(allowed))
	if wait > 0 {
		return nil, wait
	}
	reserved := p.debts[user].last
	charge := func(size int) {
		p.charge(user, payTime(size), now)
		p.charge(namespace, payTime(size)/namespaceFactor, now)
	}
	charge(reserved)
	return func(size int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		charge(size - reserved)
		if debt := p.debts[user]; size > 0 {
			debt.last = size
			p.debts[user] = debt
		}
	}, 0
}

func (p *startPace) charge(key types.NamespacedName, cost time.Duration, now time.Time) {
	if p.debts == nil {
		p.debts = map[types.NamespacedName]startDebt{}
	}
	debt := p.debts[key]
	if debt.due.Before(now) {
		debt.due = now
	}
	debt.due = debt.due.Add(cost)
	p.debts[key] = debt
}

// payTime returns the time in which startRate pays for a number of bytes.
func payTime(size int) time.Duration { return time.Duration(size) * time.Second / startRate }

// dataSize returns the number of bytes of all values of a Secret; 0 for nil.
func dataSize(secret *corev1.Secret) (size int) {
	if secret != nil {
		for _, value := range secret.Data {
			size += len(value)
		}
	}
	return size
}
