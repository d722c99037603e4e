// Package turnlog keeps a session on disk: an append-only log, a record a line. A record is on disk
// before anybody is told of it and before anything is done that follows from it. So a process that
// is killed at any point is followed by one that knows all that its predecessor said.
package turnlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/parley-dev/parley/cmd/agent/llm"
)

// Kinds of records.
const (
	// KindSession is the first record: where the session works and what it was told to heed there.
	KindSession = "session"
	// KindPrompt is a message of the user, and begins a turn, unless it is part of a recording that
	// is done again.
	KindPrompt = "prompt"
	// KindAnswer is a message of the model.
	KindAnswer = "answer"
	// KindAllowed says that the user allowed a tool call.
	KindAllowed = "allowed"
	// KindBegun says that a tool call was begun. Without a result after it, it may have been done
	// in part.
	KindBegun = "begun"
	// KindResult is the result of a tool call.
	KindResult = "result"
	// KindCondensed replaces the older part of the history by a summary.
	KindCondensed = "condensed"
	// KindEnd ends a turn.
	KindEnd = "end"
)

// Record is one line of the log.
type Record struct {
	Kind string `json:"kind"`

	// Of a session.
	Cwd          string `json:"cwd,omitempty"`
	Instructions string `json:"instructions,omitempty"`

	// Of a prompt.
	Turn    string       `json:"turn,omitempty"`
	Message *llm.Message `json:"message,omitempty"`
	// Triggered names the instructions that a word of the message called for.
	Triggered []string `json:"triggered,omitempty"`

	// Of an answer.
	Answer *llm.Answer `json:"answer,omitempty"`

	// Of a prompt and an answer: how many events of the recording are done with it.
	Replayed int `json:"replayed,omitempty"`

	// Of a tool call.
	CallID string      `json:"callId,omitempty"`
	Result *llm.Result `json:"result,omitempty"`
	// Shell is the state of the shell after the command, where it changed.
	Shell string `json:"shell,omitempty"`

	// Of a condensed history: Summary replaces all but the last Keep messages.
	Summary string `json:"summary,omitempty"`
	Keep    int    `json:"keep,omitempty"`

	// Of an end: a stop reason, or the kind of the error.
	Stop  string `json:"stop,omitempty"`
	Error string `json:"error,omitempty"`
	Says  string `json:"says,omitempty"`

	// Updates are those that the client is told with this record, as they are told.
	Updates []json.RawMessage `json:"updates,omitempty"`
}

// Log is the open log of one session. Its methods are called by one goroutine at a time, except
// Close.
type Log struct {
	file    *os.File
	records int
	// Synced is called after each record that is on disk, with the number of records. It is for
	// tests.
	Synced func(records int)
}

// ErrUnknown says that there is no such session.
var ErrUnknown = errors.New("there is no such session")

var sessionID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

const (
	directory = ".parley-agent"
	fileName  = "log.jsonl"
)

// Create begins the log of a new session.
func Create(home, id string) (*Log, error) {
	dir := filepath.Join(home, directory, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, fileName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(lock(file), syncDir(dir), syncDir(filepath.Dir(dir)), syncDir(home)); err != nil {
		return nil, err
	}
	return &Log{file: file}, nil
}

// Open reads the log of a session and repairs its end, which a crash may have torn.
func Open(home, id string) (*Log, []Record, error) {
	if !sessionID.MatchString(id) {
		return nil, nil, ErrUnknown
	}
	file, err := os.OpenFile(filepath.Join(home, directory, id, fileName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, ErrUnknown
	}
	if err != nil {
		return nil, nil, err
	}
	if err := lock(file); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	records, whole, err := parse(content)
	if err == nil && whole < len(content) {
		err = errors.Join(file.Truncate(int64(whole)), file.Sync())
	}
	if err == nil {
		_, err = file.Seek(int64(whole), io.SeekStart)
	}
	if err == nil && len(records) == 0 {
		err = ErrUnknown
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return &Log{file: file, records: len(records)}, records, nil
}

// parse returns the records and where the last whole one ends.
func parse(content []byte) (records []Record, whole int, err error) {
	for whole < len(content) {
		end := bytes.IndexByte(content[whole:], '\n')
		if end < 0 {
			break
		}
		var r Record
		if err := json.Unmarshal(content[whole:whole+end], &r); err != nil {
			if whole+end+1 == len(content) {
				break
			}
			return nil, 0, fmt.Errorf("the session's log is damaged at byte %d", whole)
		}
		records = append(records, r)
		whole += end + 1
	}
	return records, whole, nil
}

// Append writes a record and returns when it is on disk.
func (l *Log) Append(r Record) error {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return err
	}
	_, err := l.file.Write(line.Bytes())
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("the session's log: %w", err)
	}
	l.records++
	if l.Synced != nil {
		l.Synced(l.records)
	}
	return nil
}

// Close ends writing. A turn that is under way stays so: its next step fails to be recorded.
func (l *Log) Close() error { return l.file.Close() }

// lockPatience is how long a log may be in use by another process; a variable for tests.
var lockPatience = 10 * time.Second

// lock keeps a second process from writing the same log. The kernel lifts it when the holder dies.
// One whose client was killed may be a moment behind it.
func lock(file *os.File) error {
	for deadline := time.Now().Add(lockPatience); ; <-time.After(20 * time.Millisecond) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock the session's log: %w", err)
		case time.Now().After(deadline):
			return errors.New("the session is in use by another process")
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
