package webhook

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// likelyKey matches a text that is probably a key: the name of a key followed by a plain value, a
// bearer token, a password in a URL, a private key, or a key with a common prefix. References to
// variables or files do not match.
var likelyKey = regexp.MustCompile(
	`(?i)(key|token|secret|password|passwd|passphrase|credentials?)['"]?\s*[=:\s]\s*['"]?[^\s'"$<{%/.~-]` +
		`|\b(bearer|basic) [^\s'"$<{]` +
		`|://[^/\s:@]*:[^/\s$@]+@` +
		`|PRIVATE KEY-----` +
		`|\b(sk-|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|AIza|eyJ)[\w.-]*[0-9][\w.-]{8}`)

// warnOfLiteralKeys warns of arguments and plain variables of a tool server that look like keys,
// because all readers of the object can see them. The check is a guess, so it refuses nothing. The
// warnings never repeat a value. The search is slow, so it covers at most limit bytes. The result
// is the number of bytes that the search may still cover in other tool servers.
func (f *findings) warnOfLiteralKeys(path *field.Path, server v1alpha1.MCPStdioServer, limit int) int {
	const problem = "may contain a key that all readers of this object can see: store it in a Secret and use "
	likely := func(text string) bool {
		text = text[:min(len(text), limit)]
		limit -= len(text)
		return likelyKey.MatchString(text)
	}
	if likely(strings.Join(server.Args, " ")) {
		f.warn(path.Child("args"), problem+"secretRef in env")
	}
	for i, variable := range server.Env {
		if likely(variable.Name + "=" + ptr.Deref(variable.Value, "")) {
			f.warn(path.Child("env").Index(i).Child("value"), problem+"secretRef")
		}
	}
	return limit
}
