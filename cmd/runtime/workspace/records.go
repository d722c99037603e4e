package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// RecordsDir holds what the session keeps on the workspace for its later attempts.
const RecordsDir = ".parley"

const (
	// homeDir is the agent's home directory: what it remembers of its own outlives the pod there.
	homeDir  = "home"
	baseFile = "base"
)

// Records of a session, on its workspace.
type Records struct{ dir string }

// OpenRecords makes the directory of the records where it is missing. What else has its name, a
// file or a link to somewhere else, is neither followed nor replaced.
func OpenRecords(workspace string) (*Records, error) {
	path := filepath.Join(workspace, RecordsDir)
	err := os.Mkdir(path, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = ownDirectory(path)
	}
	if err == nil {
		err = ignored(path)
	}
	if err == nil {
		err = record.SyncDirectory(workspace)
	}
	if err != nil {
		return nil, fmt.Errorf("the session keeps its records in %s of the workspace, and cannot: %w", RecordsDir, err)
	}
	return &Records{path}, nil
}

func ownDirectory(path string) error {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return errors.New("it is no directory, and not of this session's making")
	}
	if err != nil {
		return err
	}
	return dir.Close()
}

// ignored keeps the records out of the repository that the agent may make of the workspace.
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

// File of the records by its name.
func (r *Records) File(name string) string { return filepath.Join(r.dir, name) }

// Home is the agent's home directory.
func (r *Records) Home() (string, error) {
	home := r.File(homeDir)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", fmt.Errorf("make the agent's home directory: %w", err)
	}
	return home, nil
}

// Base is the commit that the session began with: what an earlier attempt recorded, or else this
// one.
func (r *Records) Base(commit string) string {
	text, err := record.Read(r.File(baseFile))
	if base := strings.TrimSpace(string(text)); err == nil && base != "" {
		return base
	}
	if commit == "" {
		return ""
	}
	// Without it a later attempt tells what changed since itself.
	_ = record.Write(r.File(baseFile), strings.NewReader(commit+"\n"), 0o644)
	return commit
}
