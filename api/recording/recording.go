// Package recording validates recordings, which a session can replay.
package recording

import (
	"encoding/json"
	"slices"
)

// Valid reports whether a text is a recording: a list of events, or the response of GET
// …/trajectory. An event is a JSON object; its content is not decoded.
func Valid(text []byte) bool {
	var events []*struct{}
	if json.Unmarshal(text, &events) != nil {
		var answer struct {
			Trajectory []*struct{} `json:"trajectory"`
		}
		if json.Unmarshal(text, &answer) != nil {
			return false
		}
		events = answer.Trajectory
	}
	return events != nil && !slices.Contains(events, nil)
}
