package secrets

import (
	"maps"
	"regexp"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// longestWord bounds what is taken for a word.
const longestWord = 16

var (
	word = regexp.MustCompile(`^([A-Z]?[a-z]+|[A-Z]+)$`)
	// keyName is in the names of variables that hold a key. It may be in others: then too much is
	// masked, never too little.
	keyName = regexp.MustCompile(`(?i)key|token|secret|pass|pwd|pat|pin|cred|auth|sign|salt|private|cookie|session`)
)

// withoutWords leaves out what is kept like a key but is none. Over HTTP nobody says which
// variables of a tool server are keys, so that all of them are kept as such: also NODE_ENV, and
// production would be masked in every line of the log.
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
