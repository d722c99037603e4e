package main

import (
	"bytes"
	"encoding/json"
	"os"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/record"
)

// endFile contains the reason for the end of the work. The runtime writes this file before the
// hand-over to the archive, which may take minutes. It removes the file after it has written the
// termination message. If an attempt finds the file, the earlier attempt could not report its end,
// and the new attempt reports that end.
const endFile = "end.json"

// pendingEnd is a termination that is not reported yet. Events is the number of events in the
// journal when the work ended.
type pendingEnd struct {
	Termination session.Termination `json:"termination"`
	Events      int                 `json:"events"`
}

// readPendingEnd returns the termination that an earlier attempt could not report, or nil.
func (s *run) readPendingEnd() *session.Termination {
	var end pendingEnd
	text, err := record.Read(s.endFile)
	if err != nil || json.Unmarshal(text, &end) != nil || !endsWork(&end.Termination) || s.hasEventsAfter(end.Events) {
		s.removePendingEnd()
		return nil
	}
	return &end.Termination
}

// hasEventsAfter reports whether the journal changed after it had this number of events. An
// additional notice does not count, because the runtime may write a notice after the end of the
// work.
func (s *run) hasEventsAfter(events int) bool {
	later := events > s.journal.Len()
	err := s.journal.Events(events, func(e *session.Event) bool {
		later = e.Observation != session.ObservedNotice
		return !later
	})
	return err != nil || later
}

// writePendingEnd saves the end in case this attempt cannot report it. It does not save the end of
// an idle session: if that end is not reported, the next attempt becomes idle too, and reports its
// own end.
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

func (s *run) removePendingEnd() {
	if s.endFile != "" {
		_ = os.Remove(s.endFile) // usually there is none
	}
}
