package session

// PreviewEvent is the name of the Server-Sent Events that contain a Preview. PreviewsParameter is
// the query parameter with which a client of a stream requests previews.
const (
	PreviewEvent      = "preview"
	PreviewsParameter = "previews"
)

// Preview is the part of a running turn's text that no event contains yet. It has no ID and is
// never stored. Each preview replaces the previous one.
type Preview struct {
	// Message or Thought is the last part of the text that the agent is writing.
	Message string `json:"message,omitempty"`
	Thought string `json:"thought,omitempty"`
	// Outputs contains the last part of the output of each running command.
	Outputs []CommandOutput `json:"outputs,omitempty"`
}

// CommandOutput is the output of the command that an action started.
type CommandOutput struct {
	// Cause is the event ID of the action.
	Cause   int    `json:"cause"`
	Content string `json:"content"`
}
