package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/parley-dev/parley/api/session"
)

const (
	endingName = "/ending.json"
	// smallEnding is the size up to which an ending is stored even above the user's quota: it has
	// the cost of a session and its changed files.
	smallEnding = 64 << 10
)

// End stores the ending of an attempt: a session.Ending as JSON.
func (s *Store) End(ctx context.Context, uid string, attempt int, ending []byte) error {
	if json.Unmarshal(ending, &session.Ending{}) != nil {
		return ErrNoEnding
	}
	return retryChanged(func() error {
		when := condition{absent: true}
		switch before, err := s.bucket.open(ctx, uid+endingName, 0); {
		case err == nil:
			when = condition{version: before.version}
			_ = before.Close()
		case !errors.Is(err, errNotFound):
			return fmt.Errorf("read the ending: %w", err)
		}
		if err := s.claim(ctx, uid, attempt); err != nil {
			return err
		}
		if len(ending) > smallEnding && !s.quota.allows(uid, withEnding(len(ending))) {
			return ErrOwnerFull
		}
		if err := s.bucket.put(ctx, uid+endingName, "application/json", ending, when); err != nil {
			return fmt.Errorf("write the ending: %w", err)
		}
		s.quota.set(uid, withEnding(len(ending)))
		return nil
	})
}

// Ending returns the ending of a session as JSON and its size, or ErrNothing if it has not ended.
func (s *Store) Ending(ctx context.Context, uid string) (io.ReadCloser, int64, error) {
	found, err := s.bucket.open(ctx, uid+endingName, 0)
	switch {
	case errors.Is(err, errNotFound):
		return nil, 0, ErrNothing
	case err != nil:
		return nil, 0, fmt.Errorf("read the ending: %w", err)
	}
	return found, found.size, nil
}
