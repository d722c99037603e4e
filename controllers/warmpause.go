package controllers

import (
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// minWarmPause and maxWarmPause limit the time for which a namespace gets no warm pods after a
	// session lacked room there.
	minWarmPause = time.Minute
	maxWarmPause = 30 * time.Minute
	// roomInterval is the minimum delay between two deletions of warm pods for one session.
	roomInterval = 10 * time.Second
	// maxRoom is the maximum number of warm pods that are deleted for one session.
	maxRoom = 8
	// maxRoomWait is the longest time for which one session pauses the pools. Without this limit, a
	// session that is too large for every node would pause them forever.
	maxRoomWait = 10 * time.Minute
)

// warmPause pauses the pools of a namespace while a session lacks room there: a quota refused its
// pod, or no node has room for it. During the pause, warm pods are deleted one by one to make room.
// The pause continues for a while after the session got room. This time doubles if the next pause
// begins soon.
type warmPause struct {
	mu     sync.Mutex
	spaces map[string]*pausedSpace
	// changed is called with the namespace when a pause begins or a warm pod must be deleted.
	changed func(namespace string)
}

type pausedSpace struct {
	waiting map[types.NamespacedName]*roomRequest
	// room is the number of warm pods that must be deleted.
	room int
	// delay is how long a pause continues after the session got room.
	delay time.Duration
	until time.Time
}

type roomRequest struct {
	// first and last are the times of the first and the last request to delete a warm pod, so that
	// the session gets room. pods is the number of these requests.
	first, last time.Time
	pods        int
}

// exceedsQuota reports whether the API server refused an object because of a quota. Only the text
// of the error shows this cause.
func exceedsQuota(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

func (p *warmPause) note(session types.NamespacedName, lacksRoom bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !lacksRoom {
		space := p.spaces[session.Namespace]
		if space == nil || space.waiting[session] == nil {
			return
		}
		delete(space.waiting, session)
		if space.until = now.Add(space.delay); len(space.waiting) == 0 {
			space.room = 0
		}
		return
	}
	space := p.space(session.Namespace)
	if len(space.waiting) == 0 {
		space.begin(now)
	}
	request := space.waiting[session]
	switch {
	case request == nil:
		request = &roomRequest{first: now}
		space.waiting[session] = request
	case request.pods >= maxRoom || now.Sub(request.last) < roomInterval || now.Sub(request.first) > maxRoomWait:
		return
	}
	request.last = now
	request.pods++
	space.room++
	p.changed(session.Namespace)
}

// refused() pauses the pools of a namespace after the API server rejected a warm pod.
func (p *warmPause) refused(namespace string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	space := p.space(namespace)
	space.begin(now)
	space.until = now.Add(space.delay)
}

// space returns the entry of a namespace. The caller holds the lock.
func (p *warmPause) space(namespace string) *pausedSpace {
	if p.spaces == nil {
		p.spaces = map[string]*pausedSpace{}
	}
	if p.spaces[namespace] == nil {
		p.spaces[namespace] = &pausedSpace{waiting: map[types.NamespacedName]*roomRequest{}}
	}
	return p.spaces[namespace]
}

// takeRoom reports whether a warm pod of a namespace must be deleted. The caller then deletes one.
func (p *warmPause) takeRoom(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	space := p.spaces[namespace]
	if space == nil || space.room == 0 {
		return false
	}
	space.room--
	return true
}

// begin sets the delay of a new pause. The delay is twice the delay of the last pause, at most
// maxWarmPause. If the time since the last pause is longer than its delay, the new delay is
// minWarmPause.
func (s *pausedSpace) begin(now time.Time) {
	if s.delay == 0 || now.Sub(s.until) > s.delay {
		s.delay = minWarmPause
		return
	}
	s.delay = min(2*s.delay, maxWarmPause)
}

// left() returns the remaining time of the pause in a namespace, or zero without a pause.
// While a session waits for room (at most maxRoomWait), the end of the pause is unknown, and the
// result is minWarmPause.
func (p *warmPause) left(namespace string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	space := p.spaces[namespace]
	if space == nil {
		return 0
	}
	for _, request := range space.waiting {
		if now.Sub(request.first) <= maxRoomWait {
			return minWarmPause
		}
	}
	if len(space.waiting) == 0 && now.Sub(space.until) > maxWarmPause {
		delete(p.spaces, namespace)
	}
	return max(0, space.until.Sub(now))
}
