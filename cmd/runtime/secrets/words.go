package secrets

import (
	"maps"
	"regexp"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// longestWord is the maximum length of a plain word.
const longestWord = 16

var (
	word = regexp.MustCompile(`^([A-Z]?[a-z]+|[A-Z]+)$`)
	// keyName matches the names of variables whose values may be secret. It also matches some
	// harmless names, whose values are then masked without need.
	keyName = regexp.MustCompile(`(?i)key|token|secret|pass|pwd|pat|pin|cred|auth|sign|salt|private|cookie|session`)
)

// withoutWords removes plain words from the values to mask. All variables of a tool server are
// stored as secrets, because the HTTP API does not say which values are secret. Without this
// function, NODE_ENV=production would mask "production" in every log line.
func withoutWords(values map[string]string, doc *session.Document) map[string]string {
	masked := maps.Clone(values)
	for _, server := range doc.ToolServers.Stdio {
		for _, variable := range server.Env {
			name := session.SecretVariable(variable.ValueFile)
			value := strings.TrimSpace(values[name])
			if len(value) <= longestWord && word.MatchString(value) && !keyName.MatchString(variable.Name) {
				delete(masked, name)
			}
		}
	}
	return masked
}
