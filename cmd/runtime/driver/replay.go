package driver

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// maxReplay bounds the text of a recording in a prompt, in bytes.
const maxReplay = 48 << 10

// replayed returns a recording as text, for an agent that cannot replay it.
func (d *Driver) replayed() string {
	text, err := os.ReadFile(d.Input.ReplayFile)
	if err != nil {
		d.Notice("The recorded session cannot be read.")
		return ""
	}
	var events []session.Event
	if json.Unmarshal(text, &events) != nil {
		var trajectory struct {
			Trajectory []session.Event `json:"trajectory"`
		}
		_ = json.Unmarshal(text, &trajectory) // a recording in neither form counts as empty
		events = trajectory.Trajectory
	}
	var lines []string
	size := 0
	for i := range events {
		line := TranscriptLine(&events[i])
		if line == "" && events[i].Content != nil && events[i].Observation != session.ObservedState {
			line = "Result: " + d.texts.line(*events[i].Content)
		}
		if size += len(line); size > maxReplay {
			lines = append(lines, "[the rest is left out]")
			break
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	how := "Continue from its end:"
	if d.agent.lostSession && d.agent.can.Replays() {
		how = "You have repeated its actions at least in part, as the history of this session shows. Continue from " +
			"there, and do not repeat an action:"
	}
	return "This is a recorded session. " + how + "\n\n" + strings.Join(lines, "\n")
}
