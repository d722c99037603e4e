package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Limits of the time for which a namespace gets no warm pods after a session lacked room there.
const (
	minWarmPause = time.Minute
	maxWarmPause = 30 * time.Minute
)

// warmPause pauses the pools of a namespace while a session lacks room there: the API server refused
// its pod, or no node has room for it. The pause continues for some time, and longer each time.
type warmPause struct {
	mu     sync.Mutex
	spaces map[string]*pausedSpace
	// changed is called with the namespace when a pause begins.
	changed func(namespace string)
}

type pausedSpace struct {
	waiting map[types.NamespacedName]struct{}
	delay   time.Duration
	until   time.Time
}

// note records whether a session lacks room.
func (p *warmPause) note(session types.NamespacedName, lacksRoom bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	space := p.spaces[session.Namespace]
	switch _, waits := space.get(session); {
	case waits == lacksRoom:
	case waits:
		if delete(space.waiting, session); len(space.waiting) == 0 {
			space.until = now.Add(space.delay)
		}
	default:
		if space == nil {
			space = &pausedSpace{waiting: map[types.NamespacedName]struct{}{}}
			if p.spaces == nil {
				p.spaces = map[string]*pausedSpace{}
			}
			p.spaces[session.Namespace] = space
		}
		if len(space.waiting) == 0 {
			space.begin(now)
			p.changed(session.Namespace)
		}
		space.waiting[session] = struct{}{}
	}
}

// refused pauses the pools of a namespace in which the API server refused a warm pod.
func (p *warmPause) refused(namespace string, now time.Time) {
	p.note(types.NamespacedName{Namespace: namespace}, true, now)
	p.note(types.NamespacedName{Namespace: namespace}, false, now)
}

func (s *pausedSpace) get(session types.NamespacedName) (struct{}, bool) {
	if s == nil {
		return struct{}{}, false
	}
	entry, found := s.waiting[session]
	return entry, found
}

// begin doubles the pause, unless the last pause is long over.
func (s *pausedSpace) begin(now time.Time) {
	if s.delay == 0 || now.Sub(s.until) > s.delay {
		s.delay = minWarmPause
		return
	}
	s.delay = min(2*s.delay, maxWarmPause)
}

// left returns how long the pause of a namespace lasts at least, and whether a session waits for the
// room of the warm pods.
func (p *warmPause) left(namespace string, now time.Time) (left time.Duration, sessionWaits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	space := p.spaces[namespace]
	switch {
	case space == nil:
		return 0, false
	case len(space.waiting) > 0:
		return minWarmPause, true
	case now.Sub(space.until) > maxWarmPause:
		delete(p.spaces, namespace)
	}
	return max(0, space.until.Sub(now)), false
}
