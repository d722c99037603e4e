package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

// environment is where things are.
type environment struct {
	supervise.Place
	sessionDir, workspace, replayDir, imagesDir string
	home                                        string // once it has its workspace
	// attempt of the session, from 1.
	attempt int
}

func readEnvironment() environment {
	attempt, _ := strconv.Atoi(cmp.Or(os.Getenv(supervise.Attempt), "1"))
	return environment{
		Place:      supervise.ReadPlace(),
		attempt:    attempt,
		sessionDir: cmp.Or(os.Getenv("PARLEY_SESSION_DIR"), session.Dir),
		workspace:  cmp.Or(os.Getenv("PARLEY_WORKSPACE"), session.WorkspaceDir),
		replayDir:  cmp.Or(os.Getenv("PARLEY_REPLAY_DIR"), session.ReplayDir),
		imagesDir:  cmp.Or(os.Getenv("PARLEY_IMAGES_DIR"), session.ImagesDir),
	}
}

func readDocument(dir string) (*session.Document, error) {
	text, err := os.ReadFile(filepath.Join(dir, session.DocumentFile))
	if err != nil {
		return nil, fmt.Errorf("read the session document: %w", err)
	}
	var doc session.Document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read the session document: %s", problemOf(err))
	}
	return &doc, nil
}

// problemOf says what is wrong with a document without a word of it: an error of who reads a price
// or a duration repeats it.
func problemOf(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s at byte %d is of another type", wrong.Field, wrong.Offset)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("it is no JSON from byte %d on", wrong.Offset)
	}
	return "it has a value that cannot be read"
}
