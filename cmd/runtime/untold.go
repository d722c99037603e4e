package main

import (
	"encoding/json"
	"os"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
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
	text, err := os.ReadFile(s.endFile)
	if err != nil || json.Unmarshal(text, &end) != nil || end.Events != s.journal.Len() || !endsWork(&end.Termination) {
		s.endTold()
		return nil
	}
	return &end.Termination
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
		aside := s.endFile + ".new"
		if err = os.WriteFile(aside, text, 0o600); err == nil {
			err = os.Rename(aside, s.endFile)
		}
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
