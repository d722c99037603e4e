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
	// smallEnding is the size, in bytes, up to which an ending is stored even if the user's quota
	// is used up. Otherwise the cost and the changed files of the session would be lost.
	smallEnding = 64 << 10
)

// End stores the ending of an attempt, a session.Ending as JSON. It keeps the parts of the stored
// ending that the attempt must not replace.
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
			ending, err = s.merged(ctx, uid, before, given, text)
			if err := errors.Join(err, before.Close()); err != nil {
				return err
			}
		case !errors.Is(err, errNotFound):
			return fmt.Errorf("read the session's final report: %w", err)
		}
		if err := s.claim(ctx, uid, attempt); err != nil {
			return err
		}
		if len(text) > smallEnding && !s.quota.allows(uid, withEnding(len(ending))) {
			return ErrOwnerFull
		}
		if err := s.bucket.put(ctx, uid+endingName, "application/json", ending, when); err != nil {
			return fmt.Errorf("write the session's final report: %w", err)
		}
		s.quota.set(uid, withEnding(len(ending)))
		return nil
	})
}

// merged returns the given ending as JSON, but keeps some values of the stored ending. It keeps the
// stored usage if that usage has more calls. If given.Unrestored is set, the given changes may be
// incomplete. They then replace stored changes only if they are not empty and the archive has no
// snapshot.
func (s *Store) merged(ctx context.Context, uid string, stored io.Reader, given session.Ending,
	text []byte) ([]byte, error) {
	var before session.Ending
	found, err := io.ReadAll(stored)
	if err != nil {
		return nil, fmt.Errorf("read the session's final report: %w", err)
	}
	if json.Unmarshal(found, &before) != nil {
		before = session.Ending{} // the stored ending is damaged
	}
	spent := before.Calls > given.Calls
	if spent {
		given.Calls, given.InputTokens, given.OutputTokens, given.Cost = before.Calls, before.InputTokens,
			before.OutputTokens, before.Cost
	}
	changed := given.Unrestored && (len(before.Changes) > 0 || before.Patch != "")
	if changed && len(given.Changes) > 0 {
		_, err := s.Snapshot(ctx, uid)
		if changed = err == nil; err != nil && !errors.Is(err, ErrNothing) {
			return nil, err
		}
	}
	if changed {
		given.Changes, given.Patch, given.Repository = before.Changes, before.Patch, before.Repository
	}
	if !spent && !changed {
		return text, nil
	}
	var merged bytes.Buffer
	encoder := json.NewEncoder(&merged)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(given); err != nil {
		return nil, fmt.Errorf("merge the session's final reports: %w", err)
	}
	return merged.Bytes(), nil
}

// Ending returns the ending of a session as JSON and its size, or ErrNothing if the session has not
// ended.
func (s *Store) Ending(ctx context.Context, uid string) (io.ReadCloser, int64, error) {
	return s.openObject(ctx, uid+endingName, "the ending")
}

// openObject opens an object and returns its size, or ErrNothing.
func (s *Store) openObject(ctx context.Context, key, what string) (io.ReadCloser, int64, error) {
	found, err := s.bucket.open(ctx, key, 0)
	switch {
	case errors.Is(err, errNotFound):
		return nil, 0, ErrNothing
	case err != nil:
		return nil, 0, fmt.Errorf("read %s: %w", what, err)
	}
	return found, found.size, nil
}
