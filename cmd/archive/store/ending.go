package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/parley-dev/parley/api/session"
)

const (
	endingName = "/ending.json"
	// smallEnding is the size up to which an ending is stored even above the user's quota, because
	// it has the cost of a session and the changed files.
	smallEnding = 64 << 10
)

// End stores the ending of an attempt: a session.Ending as JSON. If the attempt did not have the
// files of earlier attempts, the stored changes are kept.
func (s *Store) End(ctx context.Context, uid string, attempt int, text []byte) error {
	var given session.Ending
	if json.Unmarshal(text, &given) != nil {
		return ErrNoEnding
	}
	return retryChanged(func() error {
		ending, when := text, condition{absent: true}
		switch before, err := s.bucket.open(ctx, uid+endingName, 0); {
		case err == nil:
			when = condition{version: before.version}
			if given.Unrestored {
				ending, err = withChanges(before, given, text)
			}
			if err := errors.Join(err, before.Close()); err != nil {
				return err
			}
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

// withChanges returns an ending, as JSON, with the changes of an earlier ending, if that ending has
// changes.
func withChanges(earlier io.Reader, given session.Ending, text []byte) ([]byte, error) {
	var before session.Ending
	if err := json.NewDecoder(earlier).Decode(&before); err != nil {
		return nil, fmt.Errorf("read the ending: %w", err)
	}
	if len(before.Changes) == 0 && before.Patch == "" {
		return text, nil
	}
	given.Changes, given.Patch, given.Repository = before.Changes, before.Patch, before.Repository
	var merged bytes.Buffer
	encoder := json.NewEncoder(&merged)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(given); err != nil {
		return nil, fmt.Errorf("merge the endings: %w", err)
	}
	return merged.Bytes(), nil
}

// Ending returns the ending of a session as JSON and its size, or ErrNothing if the session has not
// ended.
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
