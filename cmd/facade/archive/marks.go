package archive

import "sync"

const (
	// markEvery is how many events there are between two marks.
	markEvery = 256
	// maxMarked bounds how many segments marks are kept of.
	maxMarked = 1000
)

// marks are where in segments events begin, so that who wants the last ones of a large segment need
// not read those before. They are hints: a segment that was replaced is found out when it is read.
type marks struct {
	mu sync.Mutex
	// offsets of every markEvery-th event of a segment, by its key.
	offsets map[string][]int64
}

// before is the last mark at or before an event, counted from the first of the segment.
func (m *marks) before(key string, event int) (at int, offset int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	offsets := m.offsets[key]
	if len(offsets) == 0 || event < 0 {
		return 0, 0
	}
	i := min(event/markEvery, len(offsets)-1)
	return i * markEvery, offsets[i]
}

// note where an event begins.
func (m *marks) note(key string, event int, offset int64) {
	if event%markEvery != 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if event/markEvery != len(m.offsets[key]) {
		return
	}
	if m.offsets == nil {
		m.offsets = map[string][]int64{}
	}
	if len(m.offsets) >= maxMarked && m.offsets[key] == nil {
		for other := range m.offsets { // any will do
			delete(m.offsets, other)
			break
		}
	}
	m.offsets[key] = append(m.offsets[key], offset)
}

func (m *marks) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.offsets, key)
}
