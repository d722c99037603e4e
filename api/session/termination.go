package session

import (
	"encoding/json"
	"slices"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxMessage bounds what a session may say of its end. A kubelet cuts a termination message at 4096 bytes.
const maxMessage = 1024

// Termination is why a session ended. A session that ends of its own accord writes it as JSON into its
// termination message and exits with status 0; any other status means that it crashed and is to be restarted.
type Termination struct {
	// Reason is Idle, Completed or Failed.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// ParseTermination reads the termination message of a session that exited with status 0. An image with an
// entry point of its own may have written none, or anything: then the session completed. What it wrote is
// not passed on, since nothing promises that it holds no secret.
func ParseTermination(message string) Termination {
	var t Termination
	endings := []string{v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed}
	if err := json.Unmarshal([]byte(message), &t); err != nil || !slices.Contains(endings, t.Reason) {
		return Termination{Reason: v1alpha1.ReasonCompleted}
	}
	if len(t.Message) > maxMessage {
		t.Message = t.Message[:maxMessage]
	}
	return t
}
