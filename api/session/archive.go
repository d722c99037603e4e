package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
)

// A session can have two tokens for the archive. The session Secret contains the first token, under
// the key ArchiveTokenFile. The second token exists only if an attempt uses the session Secret of
// an earlier attempt. It is not in the Secret: the pod gets it in the variable
// SecretVariable(AttemptTokenFile).
const (
	ArchiveTokenFile = "archive-token"
	AttemptTokenFile = "attempt-token"
)

const (
	// MaxArchived bounds a request to the archive, in bytes. A single event can be almost as large.
	MaxArchived = 20 << 20
	// MaxChanges bounds the changed files of an Ending.
	MaxChanges = 10000
)

// Paths of the archive. ArchiveRoot and the Conversation's UID precede the other paths.
const (
	ArchiveRoot   = "/sessions/"
	ArchiveEvents = "/events"
	ArchiveEnd    = "/end"
	// ArchiveNewJournal receives a POST that closes the archived journal and starts a new one. The
	// closed journal stays readable.
	ArchiveNewJournal = "/aside"
	// ArchiveTurn receives the outcome of the session's last turn, as a TurnReport.
	ArchiveTurn = "/turn"
)

// ArchiveTurns is the path of the archive's TurnList. All pages together have one ETag. If the
// request has the parameter ArchiveWait, and its If-None-Match equals the current ETag, the
// response waits for a change.
const ArchiveTurns = "/turns"

// Query parameters of the archive.
const (
	// ArchiveFrom is the ID of the first event that a request uploads or reads.
	ArchiveFrom = "from"
	// ArchiveJournal identifies a journal. Event IDs are unique only within a journal.
	ArchiveJournal = "journal"
	// ArchivePrevious is the JournalName of the event before the uploaded events. It must equal the
	// JournalName of the last archived event, so that two journals are never mixed.
	ArchivePrevious = "previous"
	// ArchiveAttempt is the attempt of the session that sends the request. Only the latest attempt
	// may write, because a stale attempt may still send events after a newer attempt has started.
	ArchiveAttempt = "attempt"
	// ArchiveEarlier selects an earlier journal: 1 is the journal before the current one.
	ArchiveEarlier = "earlier"
	// ArchiveWait is the number of seconds for which a request may wait for a change.
	ArchiveWait = "wait"
	// ArchiveAfter is a UID. The requested page of the TurnList contains only greater UIDs.
	ArchiveAfter = "after"
)

// JournalName returns the name of an event, which is a digest of the event. A journal has the name
// of its first event.
func JournalName(event []byte) string {
	sum := sha256.Sum256(event)
	return hex.EncodeToString(sum[:12])
}

// ArchivePosition describes the archived events: the ID of the next missing event, and the journal.
type ArchivePosition struct {
	Next    int    `json:"next"`
	Journal string `json:"journal,omitempty"`
	// Last is the name of the last archived event.
	Last string `json:"last,omitempty"`
}

// Ending contains the results of a session, except for its events.
type Ending struct {
	// Changes are the changed files of the repository. They include the contents of files as long
	// as the Ending stays below its maximum size. Patch contains all changes as text.
	Changes FileChanges `json:"changes"`
	Patch   string      `json:"patch,omitempty"`
	// Repository is set if the session has a repository.
	Repository bool `json:"repository"`
	// Unrestored is set if Changes and Patch may be incomplete, for example because the attempt did
	// not restore the files of earlier attempts. With Unrestored, the archive keeps its stored
	// changes if it has a snapshot, or if the new Changes are empty. Otherwise, it replaces them.
	Unrestored bool `json:"unrestored,omitempty"`
	// Calls, InputTokens, OutputTokens and Cost are the usage of the model.
	Calls        int64  `json:"calls,omitempty"`
	InputTokens  int64  `json:"inputTokens,omitempty"`
	OutputTokens int64  `json:"outputTokens,omitempty"`
	Cost         string `json:"cost,omitempty"`
}

// FileChanges is a list of changed files.
type FileChanges []FileChange

// UnmarshalJSON reads at most MaxChanges entries of a list. An entry can need much more memory than
// its JSON text, so a long list of short entries could exhaust the memory.
func (c *FileChanges) UnmarshalJSON(text []byte) error {
	*c = nil
	decoder := json.NewDecoder(bytes.NewReader(text))
	switch begin, err := decoder.Token(); {
	case err != nil || begin == nil: // null counts as an empty list
		return err
	case begin != json.Delim('['):
		return errors.New("the changes are not a list")
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

// FileChange is a changed file.
type FileChange struct {
	Status string `json:"status"`
	Path   string `json:"path"`
	// Diff is missing if the file is binary or too large.
	Diff *Diff `json:"diff,omitempty"`
}
