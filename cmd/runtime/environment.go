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

// environment has the directories and other parameters of the container.
type environment struct {
	supervise.Config
	sessionDir, workspace, replayDir, imagesDir string
	home                                        string // set once the workspace is open
	// attempt is the number of this attempt, from 1. ran is set if an earlier attempt ran.
	attempt int
	ran     bool
	// image has the variables of the image.
	image []string
}

// children returns the environment of the agent and of the tool servers: the variables of the image,
// and then those of this process, which take precedence. This process has no variable of the image.
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

// readDocument reads the session document. It returns an error if the document has another digest,
// because a forged document could lift the session's limits. An empty digest allows any document.
func readDocument(dir, digest string) (*session.Document, error) {
	text, err := os.ReadFile(filepath.Join(dir, session.DocumentFile))
	if err != nil {
		return nil, fmt.Errorf("read the session document: %w", err)
	}
	if digest != "" && digest != session.DocumentDigest(text) {
		return nil, errors.New("read the session document: the session's Secret was replaced after its pod was created")
	}
	var doc session.Document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read the session document: %s", problemOf(err))
	}
	return &doc, nil
}

// problemOf describes an invalid document without quoting it, because errors about prices and
// durations quote the value.
func problemOf(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s at byte %d has the wrong type", wrong.Field, wrong.Offset)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("invalid JSON at byte %d", wrong.Offset)
	}
	return "it has an invalid value"
}
