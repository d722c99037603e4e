package main

import (
	"bytes"
	"encoding/json"
	"os"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/record"
)

// endFile is a record of why the session ended. It is written when the work ends, and removed when
// the termination message is written. In between, the session is handed over to the archive, which
// takes up to a minute. An attempt that finds the file reports the end of the earlier attempt. If a
// later attempt finds no file, a user started that attempt, to read the files or to send another
// message.
const endFile = "end.json"

// pendingEnd is a termination, and the number of events in the journal when the work ended.
type pendingEnd struct {
	Termination session.Termination `json:"termination"`
	Events      int                 `json:"events"`
}

// readPendingEnd returns the end that an earlier attempt could not report, or nil.
func (s *run) readPendingEnd() *session.Termination {
	var end pendingEnd
	text, err := record.Read(s.endFile)
	if err != nil || json.Unmarshal(text, &end) != nil || !endsWork(&end.Termination) || s.hasEventsAfter(end.Events) {
		s.removePendingEnd()
		return nil
	}
	return &end.Termination
}

// hasEventsAfter reports whether other events follow this number of events. Notices do not count,
// because a notice may be written late. A journal with fewer events counts as changed, too.
func (s *run) hasEventsAfter(events int) bool {
	later := events > s.journal.Len()
	err := s.journal.Events(events, func(e *session.Event) bool {
		later = e.Observation != session.ObservedNotice
		return !later
	})
	return err != nil || later
}

// writePendingEnd saves the end in case this attempt cannot report it. The end of an idle session
// is not saved, because the session becomes idle again.
func (s *run) writePendingEnd(termination *session.Termination) {
	if termination == nil || !endsWork(termination) {
		return
	}
	end := pendingEnd{Termination: *termination, Events: s.journal.Len()}
	end.Termination.Message = s.store.Mask(termination.Message)
	text, err := json.Marshal(end)
	if err == nil {
		err = record.Write(s.endFile, bytes.NewReader(text), 0o600)
	}
	if err != nil {
		s.log.Warn("saving the end of the session failed", "error", err)
	}
}

func endsWork(t *session.Termination) bool {
	return t.Reason == v1alpha1.ReasonCompleted || t.Reason == v1alpha1.ReasonFailed
}

// removePendingEnd deletes the file once the end is reported.
func (s *run) removePendingEnd() {
	if s.endFile != "" {
		_ = os.Remove(s.endFile) // usually there is none
	}
}
