// Package turnlog stores a session on disk as an append-only log with one record per line. A record
// is on disk before the client receives it and before the agent acts on it. After a crash at any
// point, the next process therefore knows everything that the client received.
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
	"time"

	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/internal/durable"
)

// These are the kinds of records.
const (
	// KindSession is the first record: the session's environment, its directory, and the instructions
	// found in this directory.
	KindSession = "session"
	// KindPrompt is a message of the user. It begins a turn, unless it arrived during a turn or is
	// part of a replayed recording.
	KindPrompt = "prompt"
	// KindAnswer is a message of the model.
	KindAnswer = "answer"
	// KindAllowed says that the user allowed a tool call.
	KindAllowed = "allowed"
	// KindBegun is the start of a tool call. If no result follows, the call may have been executed in
	// part.
	KindBegun = "begun"
	// KindResult is the result of a tool call.
	KindResult = "result"
	// KindCondensed replaces the older part of the history with a summary.
	KindCondensed = "condensed"
	// KindRepaired changes the parts of the history that a provider refused: images and calls
	// become text, and reasoning is removed.
	KindRepaired = "repaired"
	// KindWindow is the context window of a model, as learned from an error of its provider.
	KindWindow = "window"
	// KindNotice is a notice for the user.
	KindNotice = "notice"
	// KindFollowUp is a message from the agent to the model, after an answer that was empty or
	// truncated.
	KindFollowUp = "follow_up"
	// KindEnd ends a turn.
	KindEnd = "end"
)

// Record is one line of the log.
type Record struct {
	Kind string `json:"kind"`

	// KindSession records contain these fields.
	Cwd          string `json:"cwd,omitempty"`
	Environment  string `json:"environment,omitempty"`
	Instructions string `json:"instructions,omitempty"`

	// Message is a field of KindPrompt and KindFollowUp records. Turn is the client's ID of the turn
	// that the message begins.
	Turn    string       `json:"turn,omitempty"`
	Message *llm.Message `json:"message,omitempty"`
	// MessageID replaces Turn if the message arrived during a turn. It is the client's ID of the
	// message.
	MessageID string `json:"messageId,omitempty"`
	// Learned holds instructions for the model. In a KindPrompt record, the model gets them with
	// the message. In a KindResult record, the model gets them after the results.
	Learned []Knowledge `json:"learned,omitempty"`

	// KindAnswer records contain this field.
	Answer *llm.Answer `json:"answer,omitempty"`

	// Replayed is the number of events of the recording that have been replayed so far. It is a
	// field of KindSession, KindPrompt and KindAnswer records.
	Replayed int `json:"replayed,omitempty"`

	// CallID is a field of KindAllowed, KindBegun and KindResult records. Result, Shell and Waiting
	// are fields of KindResult records.
	CallID string      `json:"callId,omitempty"`
	Result *llm.Result `json:"result,omitempty"`
	// Shell is the state of the shell after the command, if the command changed the state.
	Shell string `json:"shell,omitempty"`

	// Waiting is set if the call waited for a command that is still running.
	Waiting bool `json:"waiting,omitempty"`

	// KindCondensed records contain these fields. The last Keep messages of the history stay
	// unchanged. Summary replaces the earlier messages, with two exceptions: the user's latest
	// message stays, and so do about MaxFirst characters of the user's first message.
	Summary  string `json:"summary,omitempty"`
	Keep     int    `json:"keep,omitempty"`
	MaxFirst int    `json:"maxFirst,omitempty"`

	// Model is the model that a KindRepaired or KindWindow record is about.
	Model string `json:"model,omitempty"`
	// KindRepaired records contain these fields. Images is set if all images became text.
	// OlderImages is set if the images before the user's latest message became text. Calls holds
	// the IDs of the calls that became text. Thinking is set if all reasoning was removed.
	Images      bool     `json:"images,omitempty"`
	OlderImages bool     `json:"olderImages,omitempty"`
	Calls       []string `json:"calls,omitempty"`
	Thinking    bool     `json:"thinking,omitempty"`
	// Window is the context window in a KindWindow record, in tokens.
	Window int `json:"window,omitempty"`
	// Notice is the text of a KindNotice record.
	Notice string `json:"notice,omitempty"`

	// KindEnd records contain a stop reason, or the kind and the text of an error.
	Stop      string `json:"stop,omitempty"`
	Error     string `json:"error,omitempty"`
	ErrorText string `json:"says,omitempty"`

	// Updates are the updates that the client receives with this record, encoded as they are sent.
	Updates []json.RawMessage `json:"updates,omitempty"`
}

// Knowledge is a file of instructions in the repository, as the model gets it.
type Knowledge struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Log is the open log of one session. Its methods must not be called concurrently, except Close.
type Log struct {
	file    *os.File
	records int
	// size is the length of the complete records, in bytes. broken is set if a torn record could
	// not be removed.
	size   int64
	broken error
	// Synced is called with the total number of records, each time a record is on disk. Only tests
	// use it.
	Synced func(records int)
}

// ErrUnknown is returned for a session that has no log.
var ErrUnknown = errors.New("there is no such session")

var sessionID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

const (
	directory = ".parley-agent"
	fileName  = "log.jsonl"
)

// Create creates the log of a new session.
func Create(home, id string) (*Log, error) {
	dir := filepath.Join(home, directory, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, fileName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(durable.Lock(file, lockTimeout, errLocked), durable.SyncDirectory(dir),
		durable.SyncDirectory(filepath.Dir(dir)), durable.SyncDirectory(home)); err != nil {
		return nil, err
	}
	return &Log{file: file}, nil
}

// Open reads the log of a session, and removes an incomplete last record.
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
	if err := durable.Lock(file, lockTimeout, errLocked); err != nil {
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
	return &Log{file: file, records: len(records), size: int64(whole)}, records, nil
}

// parse returns the complete records, and the offset of their end.
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

// Append writes a record and returns when it is on disk. A record that could not be written
// completely is removed, because the next record would continue its line.
func (l *Log) Append(r Record) error {
	if l.broken != nil {
		return l.broken
	}
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
		err = fmt.Errorf("write the session's log: %w", err)
		if undo := errors.Join(l.file.Truncate(l.size), l.seek()); undo != nil {
			l.broken = err
		}
		return err
	}
	l.size += int64(line.Len())
	l.records++
	if l.Synced != nil {
		l.Synced(l.records)
	}
	return nil
}

func (l *Log) seek() error {
	_, err := l.file.Seek(l.size, io.SeekStart)
	return err
}

// Close closes the log. Later calls of Append fail, so the end of a running turn is not recorded.
// The next process resumes the turn.
func (l *Log) Close() error { return l.file.Close() }

// lockTimeout limits the wait for another process to release a log. Tests change it.
var lockTimeout = 10 * time.Second

var errLocked = errors.New("the session is in use by another process")
