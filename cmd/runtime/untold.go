package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/record"
)

// endFile is among the session's records from when the work is over until the cluster is told: what
// lies between takes up to a minute. An attempt that finds it tells what the one before could not.
// One that does not was started by somebody, for the files or for another message.
const endFile = "end.json"

// untoldEnd is why the session ends, and how many events there were then.
type untoldEnd struct {
	Termination session.Termination `json:"termination"`
	Events      int                 `json:"events"`
}

// untold is why an earlier attempt was about to end; nil where it was not.
func (s *run) untold() *session.Termination {
	var end untoldEnd
	text, err := record.Read(s.endFile)
	if err != nil || json.Unmarshal(text, &end) != nil || !endsWork(&end.Termination) || s.goesOn(end.Events) {
		s.endTold()
		return nil
	}
	return &end.Termination
}

// goesOn says whether anything came after so many events but notices, which may be late.
func (s *run) goesOn(events int) bool {
	if events > s.journal.Len() {
		return true
	}
	lines, err := s.journal.Lines(events, s.journal.Len())
	return err != nil || slices.ContainsFunc(lines, func(line json.RawMessage) bool {
		event, err := session.ParseEvent(line)
		return err != nil || event.Observation != session.ObservedNotice
	})
}

// keepEnd for a later attempt, should this one not get to tell it. A session that is idle becomes
// so again.
func (s *run) keepEnd(termination *session.Termination) {
	if termination == nil || !endsWork(termination) {
		return
	}
	end := untoldEnd{Termination: *termination, Events: s.journal.Len()}
	end.Termination.Message = s.store.Mask(termination.Message)
	text, err := json.Marshal(end)
	if err == nil {
		err = record.Write(s.endFile, bytes.NewReader(text), 0o600)
	}
	if err != nil {
		s.log.Warn("the end of the session is not on record", "error", err)
	}
}

func endsWork(t *session.Termination) bool {
	return t.Reason == v1alpha1.ReasonCompleted || t.Reason == v1alpha1.ReasonFailed
}

// endTold: the end is known, and nobody has to tell it again.
func (s *run) endTold() {
	if s.endFile != "" {
		_ = os.Remove(s.endFile) // mostly there is none
	}
}
