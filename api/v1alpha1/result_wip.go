package v1alpha1

// ConversationResult wip.
type ConversationResult struct {
	Summary      string `json:"summary,omitempty"`
	Commit       string `json:"commit,omitempty"`
	Branch       string `json:"branch,omitempty"`
	FilesChanged int32  `json:"filesChanged,omitempty"`
	InputTokens  int64  `json:"inputTokens,omitempty"`
	OutputTokens int64  `json:"outputTokens,omitempty"`
	Cost         string `json:"cost,omitempty"`
}
