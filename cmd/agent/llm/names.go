package llm

import "regexp"

// maxName is the longest name of a tool that all providers accept.
const maxName = 64

var (
	validName  = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	notInNames = regexp.MustCompile(`[^a-zA-Z0-9_-]`)
)

// ValidName reports whether the APIs accept the name of a tool.
func ValidName(name string) bool { return validName.MatchString(name) }

// MakeName returns a name that the APIs accept: the same name if it is valid.
func MakeName(name string) string {
	name = notInNames.ReplaceAllString(name, "_")
	if name == "" {
		return "unknown"
	}
	return name[:min(len(name), maxName)]
}

// anthropicID returns the ID of a call in the form that Anthropic's API requires. Other servers
// return IDs with other characters.
func anthropicID(id string) string { return notInNames.ReplaceAllString(id, "_") }
