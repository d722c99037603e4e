package workspace

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// ownerFile records which session uses the workspace of a warm pod.
const ownerFile = "owner"

// ErrOwned says that a workspace has files of another session, or of an unknown session.
var ErrOwned = errors.New("the workspace contains files of another or an unknown session")

// Owner is the record of the session that uses the workspace of a warm pod. The agent can remove
// the record, but without the pod's key it cannot write a valid record. If a workspace contains
// files but no valid record, no session may use it.
type Owner struct {
	file string
	key  []byte
	// session is the recorded session, or an empty string if no session has used the workspace.
	// known is false if the record is missing or invalid.
	session string
	known   bool
}

// OpenOwner reads the owner's record in the workspace of a warm pod. The parameter key is the pod's
// key. If the workspace is unused, OpenOwner creates the record.
func OpenOwner(workspace string, key []byte) (*Owner, error) {
	o := &Owner{file: filepath.Join(workspace, RecordsDir, ownerFile), key: key}
	text, err := record.Read(o.file)
	switch {
	case err == nil:
		o.session, _, _ = strings.Cut(string(text), "\n")
		// A record that names no session is valid only in an unused workspace. Take does not wait
		// until its record is on the disk. If the node crashes, the session's files may survive
		// together with the earlier record, which names no session.
		o.known = hmac.Equal(text, []byte(o.sealed(o.session))) && (o.session != "" || unused(workspace))
		return o, nil
	case !errors.Is(err, fs.ErrNotExist) || !unused(workspace):
		return o, nil
	}
	records, err := OpenRecords(workspace)
	if err != nil {
		return nil, err
	}
	if err := o.write(""); err != nil {
		return nil, err
	}
	_, err = records.Home()
	return o, err
}

// Free reports whether no session has used the workspace.
func (o *Owner) Free() bool { return o.known && o.session == "" }

// Take records that a session uses the workspace. It returns ErrOwned if another or an unknown
// session has used the workspace.
func (o *Owner) Take(session string) error {
	switch {
	case !o.known || session == "" || strings.Contains(session, "\n") || o.session != "" && o.session != session:
		return ErrOwned
	case o.session == session:
		return nil
	}
	return o.write(session)
}

// write does not wait for the disk, because that would delay the session.
func (o *Owner) write(session string) error {
	aside := o.file + ".new"
	_ = os.RemoveAll(aside) // an agent may have made a named pipe, and opening it would block
	err := os.WriteFile(aside, []byte(o.sealed(session)), 0o600)
	if err == nil {
		err = os.Rename(aside, o.file)
	}
	if err != nil {
		return fmt.Errorf("record which session uses the workspace: %w", err)
	}
	o.session, o.known = session, true
	return nil
}

func (o *Owner) sealed(session string) string {
	mac := hmac.New(sha256.New, o.key)
	_, _ = mac.Write([]byte("workspace of " + session)) // a hash accepts every write
	return session + "\n" + hex.EncodeToString(mac.Sum(nil)) + "\n"
}

// unused reports whether a workspace has no files, except for the files that OpenOwner creates.
func unused(workspace string) bool {
	records := filepath.Join(workspace, RecordsDir)
	return hasOnly(workspace, RecordsDir) && hasOnly(records, ".gitignore", ownerFile, ownerFile+".new", homeDir) &&
		hasOnly(filepath.Join(records, homeDir))
}

// hasOnly reports whether a directory is missing, or has only entries with these names. It ignores
// the directory lost+found of a new volume, which belongs to root.
func hasOnly(dir string, names ...string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !slices.ContainsFunc(entries, func(entry fs.DirEntry) bool {
		return !slices.Contains(names, entry.Name()) && !isLostAndFound(entry)
	})
}

func isLostAndFound(entry fs.DirEntry) bool {
	info, err := entry.Info()
	if err != nil || entry.Name() != "lost+found" || !entry.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == 0
}
