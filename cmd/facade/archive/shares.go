package archive

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"gocloud.dev/blob"
)

// smallEnding is an ending that is always kept: the cost of a session, and which files it changed.
const smallEnding = 64 << 10

// shares are how much is kept of whom, so that nobody fills what all share. Where several processes
// have one bucket, each learns from Measure what the others took.
type shares struct {
	// most bounds what is kept of one owner's conversations; zero does not.
	most int64

	mu     sync.Mutex
	kept   map[string]share // by the UID of the conversation
	owners map[string]int64 // by owner
	// since a Measure began these changed; what it found of them is older.
	since map[string]bool
}

// share of one conversation.
type share struct {
	owner          string
	events, ending int64
}

func (s share) size() int64 { return s.events + s.ending }

// set changes what is known of a conversation.
func (s *shares) set(uid string, change func(*share)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(uid, change)
}

func (s *shares) change(uid string, change func(*share)) {
	if s.kept == nil {
		s.kept, s.owners = map[string]share{}, map[string]int64{}
	}
	now := s.kept[uid]
	s.add(now.owner, -now.size())
	change(&now)
	s.add(now.owner, now.size())
	s.kept[uid] = now
	if s.since != nil {
		s.since[uid] = true
	}
}

func (s *shares) add(owner string, size int64) {
	s.owners[owner] += size
	if s.owners[owner] == 0 {
		delete(s.owners, owner)
	}
}

func (s *shares) forget(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(uid, func(now *share) { *now = share{} })
	delete(s.kept, uid)
}

// room says whether there is any for a conversation as a change makes it, or one that is no larger
// than now. Of an owner who is not known all is taken.
func (s *shares) room(uid string, change func(*share)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.kept[uid]
	then := now
	change(&then)
	more := then.size() - now.size()
	return s.most == 0 || now.owner == "" || more <= 0 || s.owners[now.owner]+more <= s.most
}

func hasEvents(size int64) func(*share) { return func(of *share) { of.events = size } }

func hasEnding(size int) func(*share) { return func(of *share) { of.ending = int64(size) } }

// BoundOwners sets how much is kept of all conversations of one owner; zero is no bound.
func (s *Store) BoundOwners(most int64) { s.shares.most = most }

// OwnedBy says whose conversation it is.
func (s *Store) OwnedBy(uid, owner string) {
	s.shares.set(uid, func(now *share) { now.owner = owner })
}

// Measure how much is kept of whom.
func (s *Store) Measure(ctx context.Context, ownerOf func(uid string) (string, error)) error {
	s.shares.begin()
	found := map[string]share{}
	err := s.walk(ctx, func(key string, size int64) {
		uid, of, _ := strings.Cut(key, "/")
		now := found[uid]
		if "/"+of == endingName {
			now.ending += size
		} else {
			now.events += size
		}
		found[uid] = now
	})
	if err != nil {
		return fmt.Errorf("measure what is kept: %w", err)
	}
	for uid, now := range found {
		if now.owner, err = ownerOf(uid); err != nil {
			return err
		}
		found[uid] = now
	}
	s.shares.replace(found)
	return nil
}

func (s *shares) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = map[string]bool{}
}

// replace all that is known by what was found, but for what changed since.
func (s *shares) replace(found map[string]share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.since {
		if now, kept := s.kept[uid]; kept {
			found[uid] = now
		} else {
			delete(found, uid)
		}
	}
	s.kept, s.owners, s.since = nil, nil, nil
	for uid, now := range found {
		s.change(uid, func(of *share) { *of = now })
	}
}

// recount the events of a conversation after segments were joined: a Measure that came across them
// meanwhile counted them twice.
func (s *Store) recount(ctx context.Context, uid string) error {
	all, err := s.segments(ctx, uid)
	if err != nil {
		return err
	}
	aside, err := s.earlier(ctx, uid)
	if err != nil {
		return err
	}
	size := int64(0)
	for _, segment := range all {
		size += segment.size
	}
	for _, journal := range aside {
		size += journal.size
	}
	s.shares.set(uid, hasEvents(size))
	return nil
}

// walk through all that is kept. One listing of a bucket says it of a thousand objects.
func (s *Store) walk(ctx context.Context, visit func(key string, size int64)) error {
	if s.dir == "" {
		return s.listBucket(ctx, &blob.ListOptions{}, func(found *blob.ListObject) { visit(found.Key, found.Size) })
	}
	all, err := s.uids(ctx)
	if err != nil {
		return err
	}
	for _, uid := range all {
		err := filepath.WalkDir(filepath.Join(s.dir, uid), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && (!entry.Type().IsRegular() || strings.HasSuffix(path, temporary)) {
				return ctx.Err()
			}
			var info fs.FileInfo
			if err == nil {
				info, err = entry.Info()
			}
			switch {
			case absent(err): // what is removed meanwhile takes no room
				return nil
			case err != nil:
				return err
			}
			visit(uid+filepath.ToSlash(strings.TrimPrefix(path, filepath.Join(s.dir, uid))), info.Size())
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
