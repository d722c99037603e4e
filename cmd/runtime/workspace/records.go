package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/parley-dev/parley/cmd/internal/durable"
	"github.com/parley-dev/parley/cmd/runtime/record"
)

// RecordsDir is the directory in the workspace that holds the session's records for later attempts.
const RecordsDir = ".parley"

const (
	// homeDir is the agent's home directory. It is in the records, so the agent's state survives
	// the pod.
	homeDir  = "home"
	baseFile = "base"
)

// Records are the files that a session keeps in its workspace for later attempts.
type Records struct{ dir string }

// OpenRecords opens the records directory and creates it if it is missing. It fails if there is a
// file or link with that name.
func OpenRecords(workspace string) (*Records, error) {
	path := filepath.Join(workspace, RecordsDir)
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = os.Lstat(path); err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", RecordsDir)
		}
	}
	if err == nil {
		err = ignored(path)
	}
	if err == nil {
		err = durable.SyncDirectory(workspace)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use %s in the workspace for the session's records: %w", RecordsDir, err)
	}
	return &Records{path}, nil
}

// ignored makes git ignore the records, because the agent may create a repository in the workspace.
func ignored(path string) error {
	file, err := os.OpenFile(filepath.Join(path, ".gitignore"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString("*\n")
	return errors.Join(err, file.Close())
}

// File returns the path of a record.
func (r *Records) File(name string) string { return filepath.Join(r.dir, name) }

// Home returns the agent's home directory.
func (r *Records) Home() (string, error) {
	home := r.File(homeDir)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", fmt.Errorf("make the agent's home directory: %w", err)
	}
	return home, nil
}

// Base returns the session's first commit. This is the commit that an earlier attempt recorded. If
// there is none, Base records and returns the given commit.
func (r *Records) Base(commit string) string {
	text, err := record.Read(r.File(baseFile))
	if base := strings.TrimSpace(string(text)); err == nil && base != "" {
		return base
	}
	if commit == "" {
		return ""
	}
	// Ignore a failed write. The next attempt then finds no recorded commit, and shows only the
	// changes since the commit at its own start.
	_ = record.Write(r.File(baseFile), strings.NewReader(commit+"\n"), 0o644)
	return commit
}
