package queue

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Room describes the slots of a user.
type Room struct {
	// Waits is set if a session waits for a slot. First is the name of the first waiting session.
	Waits bool
	First types.NamespacedName
	// Running are the sessions that have a slot and that do not end soon.
	Running []types.NamespacedName
	// Needed is how many of the running sessions should end. Each of them makes room for one
	// waiting session.
	Needed int
}

// Room returns the slots of a user. It calls leaves() to find out whether a running session ends
// soon. Room.Needed counts a waiting session only if it can start after the end of one running
// session. It does not count a session whose limit is so low that several running sessions must
// end.
func (q *Queue) Room(user types.NamespacedName, leaves func(types.NamespacedName) bool) Room {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.users[user]
	if a == nil || len(a.waiting) == 0 {
		return Room{}
	}
	room := Room{Waits: true, First: a.waiting[0].name,
		Running: slices.DeleteFunc(slices.Collect(maps.Keys(a.running)), leaves)}
	taken := len(room.Running)
	for _, w := range a.waiting {
		switch {
		case taken < int(w.limit):
			taken++ // this session gets a free slot, or the slot of a session that ends soon
		case taken == int(w.limit):
			room.Needed++
		}
	}
	return room
}
