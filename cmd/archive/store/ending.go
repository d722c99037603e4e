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
	// smallEnding is the size up to which an ending is kept whatever else the user has: the cost of a
	// session, and which files it changed.
	smallEnding = 64 << 10
)

// End keeps what an attempt of a session leaves at its end: a session.Ending as JSON.
func (s *Store) End(ctx context.Context, uid string, attempt int, ending []byte) error {
	if json.Unmarshal(ending, &session.Ending{}) != nil {
		return ErrNoEnding
	}
	return unlessChanged(func() error {
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

// Ending of a session as JSON, and its size. ErrNothing means that the session has not ended.
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
