package v1alpha1

// ConversationResult is the result that a session reported when it ended.
type ConversationResult struct {
	// Summary is the agent's last message, truncated to 1024 bytes.
	// +kubebuilder:validation:MaxLength=1024
	Summary string `json:"summary,omitempty"`

	// Commit that was checked out at the end.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{7,64}$`
	Commit string `json:"commit,omitempty"`

	// Branch that was checked out at the end.
	// +kubebuilder:validation:MaxLength=255
	Branch string `json:"branch,omitempty"`

	// PullRequest is the link of the last pull request that the session opened.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s"<>\\]+$`
	PullRequest string `json:"pullRequest,omitempty"`

	// FilesChanged since the session began, committed or not.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000
	FilesChanged int32 `json:"filesChanged,omitempty"`

	// InputTokens sent to the model, including cached ones.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	InputTokens int64 `json:"inputTokens,omitempty"`

	// OutputTokens received from the model.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	OutputTokens int64 `json:"outputTokens,omitempty"`

	// Cost of inputTokens and outputTokens in US dollars, if the price is known.
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]{1,12})?$`
	Cost string `json:"cost,omitempty"`
}
