package secrets

import (
	"maps"
	"regexp"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// longestWord is the largest length of a value that counts as a plain word.
const longestWord = 16

var (
	word = regexp.MustCompile(`^([A-Z]?[a-z]+|[A-Z]+)$`)
	// keyName matches names of variables with keys. It may match other names; then too much is
	// masked, never too little.
	keyName = regexp.MustCompile(`(?i)key|token|secret|pass|pwd|pat|pin|cred|auth|sign|salt|private|cookie|session`)
)

// withoutWords removes values that are stored like keys but are plain words. The HTTP API does not
// tell which variables of a tool server are keys, so all variables are stored as secrets. Without
// withoutWords, NODE_ENV=production would mask "production" in every log line.
func withoutWords(values map[string]string, doc *session.Document) map[string]string {
	keys := maps.Clone(values)
	for _, server := range doc.ToolServers.Stdio {
		for _, variable := range server.Env {
			kept := session.SecretVariable(variable.ValueFile)
			value := strings.TrimSpace(values[kept])
			if len(value) <= longestWord && word.MatchString(value) && !keyName.MatchString(variable.Name) {
				delete(keys, kept)
			}
		}
	}
	return keys
}
