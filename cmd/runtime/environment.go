package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/parley-dev/parley/api/session"
)

// environment is where things are.
type environment struct {
	sessionDir, workspace, replayDir, imagesDir string
	bindAddress                                 string
	terminationLog                              string
	home                                        string
	cgroups                                     string
	// attempt of the session, from 1.
	attempt int
}

func readEnvironment() environment {
	attempt, _ := strconv.Atoi(variable("PARLEY_ATTEMPT", "1"))
	return environment{
		attempt:        attempt,
		sessionDir:     variable("PARLEY_SESSION_DIR", session.Dir),
		workspace:      variable("PARLEY_WORKSPACE", session.WorkspaceDir),
		replayDir:      variable("PARLEY_REPLAY_DIR", session.ReplayDir),
		imagesDir:      variable("PARLEY_IMAGES_DIR", session.ImagesDir),
		bindAddress:    variable("PARLEY_BIND_ADDRESS", fmt.Sprintf(":%d", session.Port)),
		terminationLog: variable("PARLEY_TERMINATION_LOG", "/dev/termination-log"),
		home:           variable("HOME", session.HomeDir),
		cgroups:        variable("PARLEY_CGROUP_DIR", "/sys/fs/cgroup"),
	}
}

func variable(name, usual string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return usual
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

// problemOf says what is wrong with a document without a word of it: an error of who reads a price or a duration repeats it.
func problemOf(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s at byte %d is of another type", wrong.Field, wrong.Offset)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("it is no JSON from byte %d on", wrong.Offset)
	}
	return "it has a value that cannot be read"
}
