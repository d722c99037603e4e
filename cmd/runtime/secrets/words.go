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
	// keyName is in the names of variables that hold a key. It may be in others: then too much is masked, never too little.
	keyName = regexp.MustCompile(`(?i)key|token|secret|pass|pwd|pat|pin|cred|auth|sign|salt|private|cookie|session`)
)

// withoutWords leaves out what is in a file but is no key. Over HTTP nobody says which variables of a tool server are
// keys, so that all of them come in files: also NODE_ENV, and production would be masked in every line of the log.
func withoutWords(values map[string]string, doc *session.Document) map[string]string {
	keys := maps.Clone(values)
	for _, server := range doc.ToolServers.Stdio {
		for _, variable := range server.Env {
			value := strings.TrimSpace(values[variable.ValueFile])
			if len(value) <= longestWord && word.MatchString(value) && !keyName.MatchString(variable.Name) {
				delete(keys, variable.ValueFile)
			}
		}
	}
	return keys
}
