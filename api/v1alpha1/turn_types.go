package v1alpha1

// TurnState is the state of a turn that needs an action of the user.
// +kubebuilder:validation:Enum=NeedsApproval;Failed
type TurnState string

// The states of a turn.
const (
	// TurnNeedsApproval means that an action of the agent waits for a user's approval.
	TurnNeedsApproval TurnState = "NeedsApproval"
	// TurnFailed means that the last turn ended with an error.
	TurnFailed TurnState = "Failed"
)

// ConversationTurn is the outcome of the last turn of a session.
type ConversationTurn struct {
	// State of the turn: NeedsApproval or Failed.
	State TurnState `json:"state"`

	// Reason for the state, in one word.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// Message explains the reason.
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// MaxTurnMessage is the length limit of a turn's message, in bytes.
const MaxTurnMessage = 256

// ReasonApprovalPending is the reason of a turn that needs approval.
const ReasonApprovalPending = "ApprovalPending"

// Reasons of a failed turn.
const (
	// ReasonNoModel means that the agent needs a model and the settings name none.
	ReasonNoModel = "NoModel"
	// ReasonModelUnreachable means that the model could not be reached.
	ReasonModelUnreachable = "ModelUnreachable"
	// ReasonModelRefusedKey means that the model's provider refused the API key.
	ReasonModelRefusedKey = "ModelRefusedKey"
	// ReasonModelNotFound means that the provider has no such model.
	ReasonModelNotFound = "ModelNotFound"
	// ReasonModelRateLimited means that the provider limits the request rate.
	ReasonModelRateLimited = "ModelRateLimited"
	// ReasonModelFailed means that the provider failed or refused the request.
	ReasonModelFailed = "ModelFailed"
	// ReasonContextExceeded means that the conversation is longer than the model's context.
	ReasonContextExceeded = "ContextExceeded"
	// ReasonAgentNotStarted means that the agent could not be started. The user's message waits
	// until the agent starts.
	ReasonAgentNotStarted = "AgentNotStarted"
	// ReasonTurnFailed means that the turn failed for another reason, which
	// ConversationTurn.Message explains.
	ReasonTurnFailed = "TurnFailed"
)
