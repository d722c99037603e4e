package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
)

// ArchiveTokenFile is the session's token for the archive, among its secrets.
const ArchiveTokenFile = "archive-token"

const (
	// MaxArchived bounds what the archive takes at once: one event can be almost as large.
	MaxArchived = 20 << 20
	// MaxChanges bounds how many changed files of an Ending are told.
	MaxChanges = 10000
)

// Paths under which the archive takes what a session leaves, after /sessions/ and the
// Conversation's UID.
const (
	ArchiveRoot   = "/sessions/"
	ArchiveEvents = "/events"
	ArchiveEnd    = "/end"
	// ArchiveAside makes room for a journal that began anew: what is kept is put aside.
	ArchiveAside = "/aside"
)

// What the archive is asked with.
const (
	// ArchiveFrom is the id of the first event of a segment.
	ArchiveFrom = "from"
	// ArchiveJournal tells journals apart: one that began anew has other events under the same ids.
	ArchiveJournal = "journal"
	// ArchivePrevious is the name of the event before a segment. It must be the last that is kept,
	// so that two journals are never mixed.
	ArchivePrevious = "previous"
	// ArchiveAttempt is the attempt of the session that asks. One that was taken for dead may still
	// hand something over when another has taken its place: the later one has the archive.
	ArchiveAttempt = "attempt"
	// ArchiveEarlier is the number of a journal that was put aside; 1 is the last of them.
	ArchiveEarlier = "earlier"
)

// JournalName tells a journal from others by its first event, and any event from others.
func JournalName(first []byte) string {
	sum := sha256.Sum256(first)
	return hex.EncodeToString(sum[:12])
}

// ArchivePosition is what the archive answers: the id of the event that it wants next, and what it
// has.
type ArchivePosition struct {
	Next    int    `json:"next"`
	Journal string `json:"journal,omitempty"`
	// Last is the name of the last event.
	Last string `json:"last,omitempty"`
}

// Ending is what a session leaves at its end besides its events.
type Ending struct {
	// Changes to the repository, and the files before and now as far as there is room; Patch is the
	// whole difference as text.
	Changes FileChanges `json:"changes"`
	Patch   string      `json:"patch,omitempty"`
	// Repository says whether there is one.
	Repository bool `json:"repository"`
	// Usage of the model.
	Calls        int64  `json:"calls,omitempty"`
	InputTokens  int64  `json:"inputTokens,omitempty"`
	OutputTokens int64  `json:"outputTokens,omitempty"`
	Cost         string `json:"cost,omitempty"`
}

// FileChanges are those that a session lists, of which at most MaxChanges are read: a small text
// can list so many that who reads them all has no memory left.
type FileChanges []FileChange

// UnmarshalJSON reads a list.
func (c *FileChanges) UnmarshalJSON(text []byte) error {
	*c = nil
	decoder := json.NewDecoder(bytes.NewReader(text))
	switch begin, err := decoder.Token(); {
	case err != nil || begin == nil: // null is none
		return err
	case begin != json.Delim('['):
		return errors.New("the changes are no list")
	}
	for decoder.More() && len(*c) < MaxChanges {
		var change FileChange
		if err := decoder.Decode(&change); err != nil {
			return err
		}
		*c = append(*c, change)
	}
	return nil
}

// FileChange is a file that changed.
type FileChange struct {
	Status string `json:"status"`
	Path   string `json:"path"`
	// Diff is left out where the file is binary or too large.
	Diff *Diff `json:"diff,omitempty"`
}
