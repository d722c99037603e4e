package lifecycle

import "strings"

// The bounds of texts that the operator writes.
const (
	maxStatusMessage = 2048 // of status.message in the schema
	maxRestartCause  = 256  // of status.lastRestart in the schema
	// MaxEventNote is the longest note of an event that the API server accepts.
	MaxEventNote = 1024
)

// Truncate shortens a text to n bytes, and not within a character.
func Truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
