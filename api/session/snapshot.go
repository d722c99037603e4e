package session

import (
	"crypto/hkdf"
	"crypto/sha256"
	"strconv"
	"strings"
)

// SnapshotKeyFile is the name of the entry in the session Secret that holds the session's snapshot
// key in base64. After a rotation, the entry holds the new key, a space and the previous key. The
// archive and the facade do not have these keys.
const SnapshotKeyFile = "snapshot-key"

// SnapshotKeySize is the size of a snapshot key, an AES-256 key, in bytes.
const SnapshotKeySize = 32

const (
	// MaxSnapshot bounds a compressed and encrypted snapshot in the archive, in bytes.
	MaxSnapshot = 128 << 20
	// SnapshotChunk bounds the content of one chunk before encryption, in bytes.
	SnapshotChunk = 4 << 20
	// SnapshotOverhead is the number of bytes that encryption adds to a chunk: a nonce and a tag.
	SnapshotOverhead = 12 + 16
)

// Paths of snapshots in the archive. They follow /sessions/ and the Conversation's UID.
const (
	// ArchiveSnapshot serves the Snapshot. A chunk is at ArchiveSnapshot/<id>/<index>.
	ArchiveSnapshot = "/snapshot"
	// ArchiveClaim makes the archive refuse further writes of earlier attempts. The answer is an
	// ArchiveClaimed.
	ArchiveClaim = "/claim"
	// ArchiveReplaces is the query parameter with the ID of the snapshot that a new snapshot replaces.
	// The archive refuses the new snapshot if the stored snapshot has another ID. An attempt that
	// did not restore the stored snapshot therefore cannot replace it.
	ArchiveReplaces = "replaces"
)

// Snapshot describes a snapshot of a workspace. The archive stores it after all chunks.
type Snapshot struct {
	// ID is the attempt, a dash and random text.
	ID string `json:"id"`
	// Chunks is the number of chunks, and Size their total size in bytes.
	Chunks int   `json:"chunks"`
	Size   int64 `json:"size"`
	// Seal is the encrypted description of the contents.
	Seal []byte `json:"seal"`
}

// ArchiveClaimed is the answer to a claim. It contains the current snapshot, which no earlier
// attempt can replace any more. Snapshot is nil if there is none, if it could not be read, or if
// the archive is older than this field.
type ArchiveClaimed struct {
	Snapshot *Snapshot `json:"snapshot,omitempty"`
}

// SnapshotAttempt returns the attempt in a snapshot's ID, or false for an invalid ID.
func SnapshotAttempt(id string) (attempt int, valid bool) {
	number, random, _ := strings.Cut(id, "-")
	attempt, err := strconv.Atoi(number)
	if err != nil || attempt < 0 || strconv.Itoa(attempt) != number || len(random) < 16 || len(random) > 64 {
		return 0, false
	}
	for _, r := range random {
		if (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return 0, false
		}
	}
	return attempt, true
}

// SnapshotKey derives the snapshot key of a Conversation from the manager's secret.
func SnapshotKey(secret []byte, uid string) ([]byte, error) {
	return hkdf.Key(sha256.New, secret, nil, "parley workspace snapshot "+uid, SnapshotKeySize)
}
