package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// turnsDir contains the outcome of each Conversation's last turn. The objects are named by UID,
	// and one listing finds all of them. The directories of Conversations are next to turnsDir and are
	// named by UID too; no UID equals "_turns".
	turnsDir = "_turns"
	// turnsInterval is the interval of listings while Turns waits for a change. These listings find
	// the reports that other replicas of the archive received.
	turnsInterval = 2 * time.Second
	// turnsDelay is the delay between a report to this process and the next listing, so that many
	// reports cause few listings.
	turnsDelay = 200 * time.Millisecond
	// The pause after a listing is at least turnsShare times as long as the listing took.
	turnsShare = 10
	// turnReads is the number of concurrent reads of outcomes.
	turnReads = 16
)

func turnKey(uid string) string { return turnsDir + "/" + uid }

// turns is a cache of the outcomes that the last listing found.
type turns struct {
	// limit is the number of outcomes in a page.
	limit int
	// mu is held during a listing.
	mu    sync.Mutex
	known map[string]turnObject // by UID

	wake    sync.Mutex
	changed chan struct{} // closed at the next report through this process
}

// turnObject is an outcome and the version of its object. turn is nil if the object cannot be
// decoded.
type turnObject struct {
	version string
	turn    *session.ReportedTurn
}

// nextReport returns a channel that is closed at the next report.
func (t *turns) nextReport() <-chan struct{} {
	t.wake.Lock()
	defer t.wake.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

func (t *turns) report() {
	t.wake.Lock()
	defer t.wake.Unlock()
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// SetTurn stores the outcome of the last turn of an attempt; nil removes it. conversation is the
// namespace and name of the Conversation. The quota does not apply, because an outcome is tiny.
func (s *Store) SetTurn(ctx context.Context, uid, conversation string, attempt int,
	turn *v1alpha1.ConversationTurn) error {
	if err := retryChanged(func() error { return s.claim(ctx, uid, attempt) }); err != nil {
		return err
	}
	before, _, err := readAll(ctx, s.bucket, turnKey(uid))
	switch missing := errors.Is(err, errNotFound); {
	case err != nil && !missing:
		return fmt.Errorf("read the outcome of the turn: %w", err)
	case turn == nil && missing:
		return nil
	case turn == nil:
		if err := s.removeTurn(ctx, uid); err != nil {
			return err
		}
	default:
		text, err := json.Marshal(session.ReportedTurn{UID: uid, Conversation: conversation, Attempt: attempt,
			Turn: *turn})
		if err != nil || bytes.Equal(text, before) {
			return err
		}
		// The write needs no condition, because claim() has already refused reports of earlier
		// attempts. If two writes race, the older outcome may stay until the runtime reports again.
		if err := s.bucket.put(ctx, turnKey(uid), "application/json", text, condition{}); err != nil {
			return fmt.Errorf("write the outcome of the turn: %w", err)
		}
	}
	s.turns.report()
	return nil
}

// Turns returns a page of the current outcomes and a tag that changes whenever any outcome changes.
// The parameter "after" is a UID, and the page contains only outcomes with greater UIDs. If the
// current tag equals the parameter "tag", Turns waits for a change. If nothing changes during the
// wait, the returned list is empty.
func (s *Store) Turns(ctx context.Context, tag, after string, wait time.Duration) (session.TurnList, string, error) {
	ended := time.NewTimer(wait)
	defer ended.Stop()
	for {
		changed, began := s.turns.nextReport(), time.Now() // before the listing, so that no report is missed
		list, now, err := s.listTurns(ctx, tag, after)
		if err != nil || now != tag || wait <= 0 {
			return list, now, err
		}
		pause := turnsShare * time.Since(began)
		select {
		case <-changed:
			select {
			case <-time.After(max(turnsDelay, pause)):
			case <-ctx.Done():
			}
		case <-time.After(max(turnsInterval, pause)):
		case <-ended.C:
			return list, now, nil
		case <-ctx.Done():
			return list, now, ctx.Err()
		}
	}
}

// listTurns lists the outcomes. It reads only outcomes that changed since the last listing. The
// parameter known is the tag of the caller's last list. If the tag is still the same, the new list
// is empty.
func (s *Store) listTurns(ctx context.Context, known, after string) (list session.TurnList, tag string, err error) {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	listed := map[string]string{} // versions by UID
	err = s.bucket.list(ctx, turnsDir+"/", func(found entry) {
		if uid := strings.TrimPrefix(found.key, turnsDir+"/"); uidPattern.MatchString(uid) {
			listed[uid] = found.version
		}
	})
	if err != nil {
		return list, "", fmt.Errorf("list the outcomes of turns: %w", err)
	}
	if err := s.readTurns(ctx, listed); err != nil {
		return list, "", fmt.Errorf("read the outcome of a turn: %w", err)
	}
	uids, sum := slices.Sorted(maps.Keys(s.turns.known)), sha256.New()
	for _, uid := range uids {
		fmt.Fprintln(sum, uid, s.turns.known[uid].version)
	}
	if tag = hex.EncodeToString(sum.Sum(nil)[:12]); tag == known {
		return list, tag, nil
	}
	list.Turns = []session.ReportedTurn{} // an empty JSON list, not null
	for i, uid := range uids {
		turn := s.turns.known[uid].turn
		if turn == nil || uid <= after {
			continue
		}
		if list.Turns = append(list.Turns, *turn); len(list.Turns) == s.turns.limit && i+1 < len(uids) {
			list.Next = uid
			break
		}
	}
	return list, tag, nil
}

// readTurns updates the known outcomes to the listed versions.
func (s *Store) readTurns(ctx context.Context, listed map[string]string) error {
	if s.turns.known == nil {
		s.turns.known = map[string]turnObject{}
	}
	for uid := range s.turns.known {
		if _, exists := listed[uid]; !exists {
			delete(s.turns.known, uid)
		}
	}
	var mu sync.Mutex
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(turnReads)
	for uid, version := range listed {
		mu.Lock()
		known, read := s.turns.known[uid]
		mu.Unlock()
		if read && known.version == version {
			continue
		}
		reads.Go(func() error {
			text, _, err := readAll(ctx, s.bucket, turnKey(uid))
			if errors.Is(err, errNotFound) {
				return nil // the outcome was removed after the listing
			}
			if err != nil {
				return err
			}
			object := turnObject{version: version}
			var turn session.ReportedTurn
			if json.Unmarshal(text, &turn) == nil && turn.UID == uid && session.BoundTurn(&turn.Turn) != nil {
				object.turn = &turn
			}
			mu.Lock()
			defer mu.Unlock()
			s.turns.known[uid] = object
			return nil
		})
	}
	return reads.Wait()
}

func (s *Store) removeTurn(ctx context.Context, uid string) error {
	if err := s.bucket.remove(ctx, turnKey(uid)); err != nil {
		return fmt.Errorf("remove the outcome of the turn: %w", err)
	}
	return nil
}

// sweepTurns removes the outcomes of unknown Conversations.
func (s *Store) sweepTurns(ctx context.Context, ownerOf func(uid string) (string, error)) error {
	var uids []string
	err := s.bucket.list(ctx, turnsDir+"/", func(found entry) {
		uids = append(uids, strings.TrimPrefix(found.key, turnsDir+"/"))
	})
	if err != nil {
		return fmt.Errorf("list the outcomes of turns: %w", err)
	}
	for _, uid := range uids {
		switch owner, err := ownerOf(uid); {
		case err != nil:
			return err
		case owner == "":
			if err := s.removeTurn(ctx, uid); err != nil {
				return err
			}
		}
	}
	return nil
}
