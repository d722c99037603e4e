package store_test

import (
	"testing"

	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestSnapshotsAreReplacedAtomically(t *testing.T) {
	archivetest.TestSnapshots(t, archivetest.InDirectory(t))
}

func TestInterruptedUploadsAreRemoved(t *testing.T) {
	archivetest.TestInterruptedUploads(t, archivetest.InDirectory(t))
}

func TestSnapshotsCountAgainstTheQuota(t *testing.T) {
	archivetest.TestSnapshotQuota(t, archivetest.InDirectory(t))
}

func TestArchivedChangesSurviveAnAttemptThatCouldNotRestoreFiles(t *testing.T) {
	archivetest.TestUnrestoredEnding(t, archivetest.InDirectory(t))
}
