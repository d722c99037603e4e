package llm

import "regexp"

// maxName is the maximum length of a tool's name that all providers accept.
const maxName = 64

var (
	validName  = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	notInNames = regexp.MustCompile(`[^a-zA-Z0-9_-]`)
)

// ValidName reports whether the APIs accept the name of a tool.
func ValidName(name string) bool { return validName.MatchString(name) }

// MakeName replaces the invalid characters of a tool's name and truncates it, so that the APIs
// accept it. It returns a valid name unchanged.
func MakeName(name string) string {
	name = notInNames.ReplaceAllString(name, "_")
	if name == "" {
		return "unknown"
	}
	return name[:min(len(name), maxName)]
}

// anthropicID replaces the characters of a call's ID that Anthropic's API rejects. IDs of other
// providers may contain such characters.
func anthropicID(id string) string { return notInNames.ReplaceAllString(id, "_") }
