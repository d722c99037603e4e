package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

type environment struct {
	supervise.Config
	sessionDir, workspace, replayDir, imagesDir string
	home                                        string // set by openRecords
	// attempt is the number of this attempt and starts at 1. ran is set if an earlier attempt ran.
	attempt int
	ran     bool
	// document is the encoded session document of a warm pod's session. It is nil in a cold pod,
	// where sessionDir contains the document.
	document []byte
	// image holds the environment variables that the session's image sets.
	image []string
}

// children returns the environment of the agent and the tool servers: the image's variables and
// this process's variables, which take precedence. The image's variables come from e.image, because
// TakeImage removed them from this process's environment.
func (e *environment) children() []string { return append(slices.Clone(e.image), os.Environ()...) }

func readEnvironment() environment {
	attempt, _ := strconv.Atoi(cmp.Or(os.Getenv(supervise.Attempt), "1"))
	return environment{
		Config:     supervise.ReadConfig(),
		attempt:    attempt,
		ran:        os.Getenv(supervise.RanAttempt) != "",
		sessionDir: cmp.Or(os.Getenv("PARLEY_SESSION_DIR"), session.Dir),
		workspace:  cmp.Or(os.Getenv("PARLEY_WORKSPACE"), session.WorkspaceDir),
		replayDir:  cmp.Or(os.Getenv("PARLEY_REPLAY_DIR"), session.ReplayDir),
		imagesDir:  cmp.Or(os.Getenv("PARLEY_IMAGES_DIR"), session.ImagesDir),
	}
}

// readDocument reads the session document. The document must have the given digest, because a
// forged document could remove the session's limits. An empty digest allows any document.
func readDocument(dir, digest string) (*session.Document, error) {
	text, err := os.ReadFile(filepath.Join(dir, session.DocumentFile))
	if err != nil {
		return nil, fmt.Errorf("read the session document: %w", err)
	}
	if digest != "" && digest != session.DocumentDigest(text) {
		return nil, errors.New("read the session document: the session's Secret was replaced after its pod was created")
	}
	return decodeDocument(text)
}

func decodeDocument(text []byte) (*session.Document, error) {
	var doc session.Document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read the session document: %s", problemOf(err))
	}
	return &doc, nil
}

// writeDocument writes the document of a warm pod's session to the home directory, for the agent.
// In a cold pod, the agent reads the file that the kubelet mounted.
func (s *run) writeDocument() error {
	if s.env.document == nil {
		return nil
	}
	s.env.sessionDir = filepath.Join(s.env.home, ".parley")
	// An earlier agent may have replaced the directory with a link, or the document with a directory.
	if info, err := os.Lstat(s.env.sessionDir); err == nil && !info.IsDir() {
		_ = os.Remove(s.env.sessionDir)
	}
	err := os.MkdirAll(s.env.sessionDir, 0o700)
	if err == nil {
		file := filepath.Join(s.env.sessionDir, session.DocumentFile)
		_ = os.RemoveAll(file)
		err = create(file, s.env.document)
	}
	if err != nil {
		return fmt.Errorf("write the session document: %w", err)
	}
	s.env.document = nil
	return nil
}

// create writes a new file. It does not sync the file to the disk, because a restarted container
// receives the document again.
func create(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// problemOf describes an invalid document without the text of err. The errors for prices and
// durations quote the value, which may be secret.
func problemOf(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s at byte %d has the wrong type", wrong.Field, wrong.Offset)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("invalid JSON at byte %d", wrong.Offset)
	}
	return "it has an invalid value"
}
