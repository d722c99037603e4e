package lifecycle

import "strings"

// These are the maximum lengths of texts that the operator writes, in bytes.
const (
	maxStatusMessage = 2048 // limit of status.message in the schema
	maxRestartCause  = 256  // limit of status.lastRestart in the schema
	// MaxEventNote is the API server's limit for the note of an event.
	MaxEventNote = 1024
)

// Truncate shortens a text to at most n bytes, at a character boundary.
func Truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
