// Package recording knows the form of what a session can replay.
package recording

import (
	"encoding/json"
	"slices"
)

// Valid reports whether a text is a recording: events, as a list or as what GET …/trajectory
// answers. An event is an object; what is in it costs nothing here.
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
