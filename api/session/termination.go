package session

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxMessage bounds what a session may say of its end. A kubelet cuts a termination message at 4096 bytes.
const maxMessage = 1024

// Termination is why a session ended. A session that ends of its own accord writes it as JSON into its
// termination message and exits with status 0; any other status means that it crashed and is to be restarted.
type Termination struct {
	// Reason is Idle, Completed or Failed. With another status than 0 it is OOMKilled, or there is none.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Result is what came of the session, where it says so.
	Result *v1alpha1.ConversationResult `json:"result,omitempty"`
}

// ParseTermination reads the termination message of a session that exited with status 0. An image with an
// entry point of its own may have written none, or anything: then the session completed. What it wrote is
// not passed on, since nothing promises that it holds no secret. said is whether the session wrote why it ended.
func ParseTermination(message string) (t Termination, said bool) {
	endings := []string{v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed}
	if err := json.Unmarshal([]byte(message), &t); err != nil || !slices.Contains(endings, t.Reason) {
		return Termination{Reason: v1alpha1.ReasonCompleted}, false
	}
	t.Message = cut(t.Message)
	return t, true
}

// OOMKilled is why a process ended that the kernel killed because memory ran out, in a kubelet's word.
const OOMKilled = "OOMKilled"

// KilledForMemory reads the termination message of a session that exited with another status than 0.
func KilledForMemory(message string) bool {
	var t Termination
	return json.Unmarshal([]byte(message), &t) == nil && t.Reason == OOMKilled
}

// Encode is the termination message that ParseTermination reads.
func (t Termination) Encode() ([]byte, error) {
	t.Message = cut(t.Message)
	return json.Marshal(t)
}

// cut shortens a message to what may be said, and not within a character.
func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "")
}
