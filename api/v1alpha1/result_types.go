package v1alpha1

// ConversationResult is what came of a session, as it said itself when it ended.
type ConversationResult struct {
	// Summary of what was done: the last words of the agent, at most 1024 bytes.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Summary string `json:"summary,omitempty"`

	// Commit that was checked out in the end.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{7,64}$`
	// +optional
	Commit string `json:"commit,omitempty"`

	// Branch that was checked out in the end.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Branch string `json:"branch,omitempty"`

	// FilesChanged since the session began, committed or not.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000
	// +optional
	FilesChanged int32 `json:"filesChanged,omitempty"`

	// InputTokens that went to the model, those from its cache included.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	InputTokens int64 `json:"inputTokens,omitempty"`

	// OutputTokens that came from the model.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	OutputTokens int64 `json:"outputTokens,omitempty"`

	// Cost of these tokens in US dollars, where their price is known.
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]{1,12})?$`
	// +optional
	Cost string `json:"cost,omitempty"`
}
