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
	// keyName matches names of variables that may contain a key. If it matches other names, too
	// much is masked, but never too little.
	keyName = regexp.MustCompile(`(?i)key|token|secret|pass|pwd|pat|pin|cred|auth|sign|salt|private|cookie|session`)
)

// withoutWords removes plain words from the values to mask. All variables of a tool server are
// stored as secrets, because the HTTP API does not say which of them are keys. Without this
// function, NODE_ENV=production would mask "production" in every log line.
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
