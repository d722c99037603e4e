package archive

import "context"

// Fault comes before each "write" and "remove" of an object, and before the "commit" of what was
// compacted.
func (s *Store) Fault(fault func(ctx context.Context, step, key string) error) { s.fault = fault }

// Most sets how much is kept of one conversation.
func (s *Store) Most(size int64) { s.most = size }

// Tidied waits until nothing is done in the background.
func (s *Store) Tidied() { s.tidier.all.Wait() }

// Segments is how many there are of a conversation.
func (s *Store) Segments(ctx context.Context, uid string) (int, error) {
	all, err := s.segments(ctx, uid)
	return len(all), err
}
