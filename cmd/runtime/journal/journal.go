// Package journal stores the events of a session in a file in the workspace, one event per line.
// Each event is on disk before it is published. Later attempts of the session resume from the
// journal.
package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/internal/durable"
)

// maxLine bounds the JSON of an event in bytes. The driver truncates the agents' events to a much
// smaller size.
const maxLine = 16 << 20

// ErrTooLarge is the error for an event that is too large and was not written. Other events can
// still be written.
var ErrTooLarge = fmt.Errorf("an event may have at most %d MiB as JSON", maxLine>>20)

const lockTimeout = 2 * time.Second

var errLocked = errors.New("another attempt of the session has it open")

// Journal is the journal of a session. It is safe for concurrent use.
type Journal struct {
	mask func(string) string

	mu   sync.Mutex
	file *os.File
	// bounds are the offsets of the lines. Event n begins at bounds[n] and ends at bounds[n+1].
	bounds []int64
	// failed is the first write error. After this error, nothing is written, because the state of
	// the disk is unknown.
	failed error
	// grown is closed and replaced when events are added.
	grown chan struct{}
	// named does the work of AwaitName, once.
	named func() error
}

// Open opens or creates the journal. It removes an incomplete last line, which was never published.
// mask masks secrets in events before they are written.
func Open(path string, mask func(string) string) (*Journal, error) {
	j, err := open(path, mask)
	if err != nil {
		return nil, err
	}
	// An earlier process may have ended before its writes reached the disk.
	if j.end() > 0 {
		if err := j.file.Sync(); err != nil {
			_ = j.file.Close()
			return nil, fmt.Errorf("open the journal: %w", err)
		}
	}
	j.name(func() error { return durable.SyncDirectory(filepath.Dir(path)) })
	return j, nil
}

// OpenDownloaded opens a journal that was downloaded to another file, or creates that file. The
// file gets the name path in the background, after its events are on disk. Append waits for that.
// If the process ends earlier, the next process finds no journal and downloads it again.
func OpenDownloaded(file, path string, mask func(string) string) (*Journal, error) {
	j, err := open(file, mask)
	if err != nil {
		return nil, err
	}
	j.name(func() error {
		if err := j.file.Sync(); err != nil {
			return err
		}
		if err := os.Rename(file, path); err != nil {
			return err
		}
		return durable.SyncDirectory(filepath.Dir(path))
	})
	return j, nil
}

func (j *Journal) name(do func() error) {
	j.named = sync.OnceValue(do)
	go func() { _ = j.named() }() // Append returns the error
}

// AwaitName waits until the file has its name, and the name and the events are on disk.
func (j *Journal) AwaitName() error {
	if err := j.named(); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	return nil
}

func open(path string, mask func(string) string) (*Journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j := &Journal{mask: mask, file: file, grown: make(chan struct{})}
	// Lock the file, because the pod of an earlier attempt may still run on a disconnected node and
	// write to the journal.
	if err = durable.Lock(file, lockTimeout, errLocked); err == nil {
		err = j.recover()
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	return j, nil
}

func (j *Journal) recover() error {
	bounds, torn, err := scan(j.file)
	if err != nil {
		return err
	}
	j.bounds = bounds
	if torn {
		return j.file.Truncate(j.end())
	}
	return nil
}

// scan returns the bounds of the event lines. torn is set if an incomplete last line follows them.
// Any other invalid line is an error.
func scan(file io.Reader) (bounds []int64, torn bool, err error) {
	bounds = []int64{0}
	for line, err := range ReadLines(file) {
		last := len(bounds) - 1
		switch {
		case err != nil:
			return nil, false, err
		case torn:
			return nil, false, fmt.Errorf("line %d is damaged", last+1)
		case bytes.HasSuffix(line, []byte("\n")) && isEvent(line, last):
			bounds = append(bounds, bounds[last]+int64(len(line)))
		default:
			torn = true
		}
	}
	return bounds, torn, nil
}

// isEvent reports whether a line is the event with this ID. It parses the whole event, because each
// reader of the journal must be able to parse it.
func isEvent(line []byte, id int) bool {
	var head struct {
		ID *int `json:"id"`
	}
	if json.Unmarshal(line, &head) != nil || head.ID == nil || *head.ID != id {
		return false
	}
	_, err := session.ParseEvent(line)
	return err == nil
}

// Mask masks secrets in a text, in the same way as Append. Truncate a text only after
// this call, because a truncated secret is not recognized.
func (j *Journal) Mask(text string) string { return j.mask(text) }

func (j *Journal) end() int64 { return j.bounds[len(j.bounds)-1] }

// Len returns the number of events.
func (j *Journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.bounds) - 1
}

// Size returns the total size in bytes of the event with this ID and all later events.
func (j *Journal) Size(from int) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end() - j.bounds[min(max(from, 0), len(j.bounds)-1)]
}

// Append assigns IDs and missing timestamps to events, and returns when they are on disk. After any
// error except ErrTooLarge, nothing more can be appended.
func (j *Journal) Append(events ...session.Event) ([]session.Event, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return nil, j.failed
	}
	var text bytes.Buffer
	var ends []int64
	written := make([]session.Event, 0, len(events))
	for _, event := range events {
		event.ID = len(j.bounds) - 1 + len(written)
		if event.Timestamp == "" {
			event.Timestamp = session.Timestamp(time.Now())
		}
		event = maskEvent(event, j.mask)
		line, err := json.Marshal(event)
		if err != nil {
			return nil, fmt.Errorf("write the journal: %w", err)
		}
		if len(line) > maxLine {
			return nil, fmt.Errorf("write the journal: %w; this event has %d bytes", ErrTooLarge, len(line))
		}
		text.Write(append(line, '\n'))
		ends = append(ends, j.end()+int64(text.Len()))
		written = append(written, event)
	}
	_, err := j.file.WriteAt(text.Bytes(), j.end())
	if err == nil {
		err = j.file.Sync()
	}
	if err == nil {
		err = j.named()
	}
	if err != nil {
		j.failed = fmt.Errorf("write the journal: %w", err)
		return nil, j.failed
	}
	j.bounds = append(j.bounds, ends...)
	close(j.grown)
	j.grown = make(chan struct{})
	return written, nil
}

// Lines returns the JSON of the events with from <= ID < to.
func (j *Journal) Lines(from, to int) ([]json.RawMessage, error) {
	j.mu.Lock()
	from, to = max(from, 0), min(to, len(j.bounds)-1)
	if from >= to {
		j.mu.Unlock()
		return nil, nil
	}
	bounds := slices.Clone(j.bounds[from : to+1])
	j.mu.Unlock()

	// Written lines never change, so no lock is needed to read them.
	text := make([]byte, bounds[len(bounds)-1]-bounds[0])
	if _, err := j.file.ReadAt(text, bounds[0]); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	lines := make([]json.RawMessage, 0, to-from)
	for i := range to - from {
		lines = append(lines, text[bounds[i]-bounds[0]:bounds[i+1]-bounds[0]-1]) // without the line end
	}
	return lines, nil
}

// Line returns the JSON of the event with this ID.
func (j *Journal) Line(id int) (json.RawMessage, error) {
	lines, err := j.Lines(id, id+1)
	if err == nil && len(lines) == 0 {
		err = errors.New("the journal has no such event")
	}
	if err != nil {
		return nil, fmt.Errorf("event %d cannot be read: %w", id, err)
	}
	return lines[0], nil
}

// Events calls visit() for the event with this ID and for all later events, until visit
// returns false.
func (j *Journal) Events(from int, visit func(*session.Event) bool) error {
	const batch = 64
	for to := j.Len(); from < to; from += batch {
		lines, err := j.Lines(from, min(from+batch, to))
		if err != nil {
			return err
		}
		for _, line := range lines {
			event, err := session.ParseEvent(line)
			if err != nil {
				return fmt.Errorf("read the journal: %w", err)
			}
			if !visit(&event) {
				return nil
			}
		}
	}
	return nil
}

// More returns a channel that is closed as soon as there are more than n events.
func (j *Journal) More(n int) <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.bounds)-1 > n {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return j.grown
}

// Close closes the file. Later appends fail.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = errors.New("write the journal: it is closed")
	}
	_ = j.named() // it may still use the file
	return j.file.Close()
}

// ReadLines yields the lines of a journal file with their line ends. The last line may lack its
// line end. A line that is longer than any event is an error. A yielded line is valid only until
// the next iteration.
func ReadLines(file io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		reader := bufio.NewReaderSize(file, 64<<10)
		var line []byte
		for {
			part, err := reader.ReadSlice('\n')
			line = append(line, part...)
			switch {
			case len(line) > maxLine+1:
				yield(nil, fmt.Errorf("the journal has a line of more than %d bytes", maxLine))
				return
			case errors.Is(err, bufio.ErrBufferFull):
				continue
			case err != nil && !errors.Is(err, io.EOF):
				yield(nil, err)
				return
			}
			if len(line) > 0 && !yield(line, nil) || err != nil {
				return
			}
			line = line[:0]
		}
	}
}
