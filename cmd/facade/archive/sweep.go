package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gocloud.dev/blob"
)

// orphanName marks what no Conversation owns, and holds since when that is known.
const orphanName = "/orphaned"

// Delete all that is kept of a conversation.
func (s *Store) Delete(ctx context.Context, uid string) error {
	if uid == "" || strings.Contains(uid, "/") {
		return fmt.Errorf("%q is no UID", uid)
	}
	if err := s.tidier.forgo(ctx, uid); err != nil { // what it writes would come back
		return err
	}
	list := s.bucket.List(&blob.ListOptions{Prefix: uid + "/"})
	for {
		object, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			s.mu.Lock()
			delete(s.states, uid)
			s.mu.Unlock()
			s.shares.forget(uid)
			return s.removeDir(uid)
		}
		if err != nil {
			return fmt.Errorf("list what is kept: %w", err)
		}
		if err := s.remove(ctx, object.Key); err != nil {
			return err
		}
	}
}

// removeDir removes what a bucket in a directory leaves of an object's name.
func (s *Store) removeDir(uid string) error {
	if s.dir == "" || uid == "." || uid == ".." {
		return nil
	}
	return os.RemoveAll(filepath.Join(s.dir, uid))
}

// Sweep removes what has belonged to no Conversation for a time, and marks what belongs to none
// now. Since when is written down: how old something is says nothing about that.
func (s *Store) Sweep(ctx context.Context, owned func(uid string) bool, retention time.Duration,
	now time.Time) (removed int, err error) {
	all, err := s.uids(ctx)
	if err != nil {
		return 0, fmt.Errorf("list what is kept: %w", err)
	}
	var failed []error
	for _, uid := range all {
		gone, err := s.sweepOne(ctx, uid, owned(uid), retention, now)
		if err != nil { // of the others it can be told all the same
			failed = append(failed, fmt.Errorf("%s: %w", uid, err))
		}
		if gone && err == nil {
			removed++
		}
	}
	return removed, errors.Join(failed...)
}

func (s *Store) sweepOne(ctx context.Context, uid string, owned bool, retention time.Duration,
	now time.Time) (gone bool, err error) {
	mark, err := s.bucket.ReadAll(ctx, uid+orphanName)
	marked := err == nil
	if err != nil && !absent(err) {
		return false, fmt.Errorf("read a mark: %w", err)
	}
	switch since, parsed := time.Parse(time.RFC3339, string(mark)); {
	case owned && marked:
		return false, s.remove(ctx, uid+orphanName)
	case owned:
		return false, nil
	case !marked || parsed != nil:
		return false, s.write(ctx, uid+orphanName, false, "text/plain", func(w io.Writer) error {
			_, err := io.WriteString(w, now.UTC().Format(time.RFC3339))
			return err
		})
	case now.Sub(since) < retention:
		return false, nil
	}
	return true, s.Delete(ctx, uid)
}
