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

// RecordsDir holds the session's files on the workspace for later attempts.
const RecordsDir = ".parley"

const (
	// homeDir is the agent's home directory, so that the agent's state survives the pod.
	homeDir  = "home"
	baseFile = "base"
)

// Records are the session's files on its workspace.
type Records struct{ dir string }

// OpenRecords creates the records directory if it is missing. A file or link of that name is
// neither followed nor replaced.
func OpenRecords(workspace string) (*Records, error) {
	path := filepath.Join(workspace, RecordsDir)
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = os.Lstat(path); err == nil && !info.IsDir() {
			err = errors.New("it is not a directory of this session")
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

// ignored excludes the records from a repository that the agent may create in the workspace.
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

// Base returns the session's first commit: the commit that an earlier attempt recorded, or else the
// given commit.
func (r *Records) Base(commit string) string {
	text, err := record.Read(r.File(baseFile))
	if base := strings.TrimSpace(string(text)); err == nil && base != "" {
		return base
	}
	if commit == "" {
		return ""
	}
	// If this fails, a later attempt compares with its own first commit.
	_ = record.Write(r.File(baseFile), strings.NewReader(commit+"\n"), 0o644)
	return commit
}
