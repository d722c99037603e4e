package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// orphanName is the object that marks data without a Conversation. It contains the time at which a
// sweep first found this data.
const orphanName = "/orphaned"

// Delete deletes the data of a Conversation.
func (s *Store) Delete(ctx context.Context, uid string) error {
	if !uidPattern.MatchString(uid) {
		return fmt.Errorf("%q is not a UID", uid)
	}
	if err := s.bucket.removeAll(ctx, uid); err != nil {
		return fmt.Errorf("delete the data of a conversation: %w", err)
	}
	if err := s.removeTurn(ctx, uid); err != nil {
		return err
	}
	s.quota.forget(uid)
	return nil
}

// SetOwner sets the owner of a Conversation.
func (s *Store) SetOwner(uid, owner string) { s.quota.set(uid, withOwner(owner)) }

// Sweep measures the usage of each user. It deletes data whose Conversation has been missing for
// the retention time. The object orphanName contains the start of that time, because the age of the
// data does not show when the Conversation was deleted. ownerOf returns "" for an unknown
// Conversation.
func (s *Store) Sweep(ctx context.Context, ownerOf func(uid string) (string, error), retention time.Duration,
	now time.Time) (removed int, err error) {
	s.quota.measure()
	measured, marked, snapshots := map[string]usage{}, map[string]bool{}, map[string]map[string]bool{}
	err = s.bucket.list(ctx, "", func(found entry) {
		uid, name, inside := strings.Cut(found.key, "/")
		if !inside || uid == turnsDir || uid == ledgerDir {
			return
		}
		of := measured[uid]
		switch name = "/" + name; {
		case name == orphanName:
			marked[uid] = found.size > 0
		case name == endingName:
			of.ending += found.size
		case strings.HasPrefix(name, snapshotDir):
			of.snapshot += found.size
			id, _, _ := strings.Cut(strings.TrimPrefix(name, snapshotDir), "/")
			if snapshots[uid] == nil {
				snapshots[uid] = map[string]bool{}
			}
			snapshots[uid][id] = true
		case name != attemptName && name != snapshotName && name != modelName:
			of.events += found.size
		}
		measured[uid] = of
	})
	if err != nil {
		return 0, fmt.Errorf("list the store: %w", err)
	}
	var orphans []string
	failed := []error{s.sweepTurns(ctx, ownerOf)}
	for uid, of := range measured {
		if of.owner, err = ownerOf(uid); err != nil {
			return 0, err
		}
		measured[uid] = of
		switch {
		case of.owner == "":
			orphans = append(orphans, uid)
		case marked[uid]:
			failed = append(failed, s.bucket.put(ctx, uid+orphanName, "text/plain", nil, condition{})) // clears the mark
		}
	}
	s.quota.replace(measured)
	failed = append(failed, s.sweepChunks(ctx, snapshots))
	for _, uid := range orphans {
		gone, err := s.expire(ctx, uid, retention, now)
		if err != nil { // continue with the other orphans
			failed = append(failed, fmt.Errorf("%s: %w", uid, err))
		} else if gone {
			removed++
		}
	}
	return removed, errors.Join(failed...)
}

// expire marks data without a Conversation, and deletes the data if the mark is older than the
// retention time.
func (s *Store) expire(ctx context.Context, uid string, retention time.Duration, now time.Time) (bool, error) {
	mark, _, err := readAll(ctx, s.bucket, uid+orphanName)
	if err != nil && !errors.Is(err, errNotFound) {
		return false, fmt.Errorf("read the mark of orphaned data: %w", err)
	}
	since, unmarked := time.Parse(time.RFC3339, string(mark))
	switch {
	case unmarked != nil:
		text := []byte(now.UTC().Format(time.RFC3339))
		return false, s.bucket.put(ctx, uid+orphanName, "text/plain", text, condition{})
	case now.Sub(since) < retention:
		return false, nil
	}
	return true, s.Delete(ctx, uid)
}
