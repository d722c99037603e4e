package queue

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestForEachWaitingSessionOneRunningSessionEnds(t *testing.T) {
	user := types.NamespacedName{Namespace: "ns", Name: "ada"}
	for name, c := range map[string]struct {
		running int
		leaving int
		waiting []int32 // the limits of the waiting sessions
		needed  int
	}{
		"nobody waits":                     {running: 2},
		"one waits":                        {running: 2, waiting: []int32{2}, needed: 1},
		"three wait":                       {running: 2, waiting: []int32{2, 2, 2}, needed: 3},
		"one waits, one leaves":            {running: 2, leaving: 1, waiting: []int32{2}},
		"two wait, one leaves":             {running: 2, leaving: 1, waiting: []int32{2, 2}, needed: 1},
		"one end would not be enough":      {running: 3, waiting: []int32{1}},
		"another class has a higher limit": {running: 3, waiting: []int32{1, 3}, needed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			q := New(func(types.NamespacedName) {})
			session := func(kind string, i int) Session {
				return Session{User: user, Name: types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("%s-%d", kind, i)}}
			}
			for i := range c.running {
				q.Hold(session("running", i))
			}
			for i, limit := range c.waiting {
				q.Enter(session("waiting", i), ptr.To(limit), 0)
			}
			left := c.leaving
			room := q.Room(user, func(types.NamespacedName) bool {
				left--
				return left >= 0
			})
			if room.Needed != c.needed || room.Waits != (len(c.waiting) > 0) {
				t.Errorf("got %+v", room)
			}
			if room.Waits && (len(room.Running) != c.running-c.leaving || room.First.Name != "waiting-0") {
				t.Errorf("got %+v", room)
			}
		})
	}
}
