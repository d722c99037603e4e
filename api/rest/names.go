package rest

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EntryNames returns the name of an entry in a CRD list such as customSecrets. In a request, this
// list is a JSON object, and the names of the entries are its keys.
type EntryNames func(list string, index int) string

// LocationOf translates a path in a CRD object, such as spec.mcpConfig.sseServers[0].url, into a
// location in the request.
func LocationOf(path string, names EntryNames) Location {
	loc := Location{"body"}
	if path == "metadata.name" || path == "" || path == "<nil>" {
		return loc.At("conversation_id")
	}
	for step := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(path, "."), "spec."), ".") {
		name, index, indexed := strings.Cut(step, "[")
		if name == "images" {
			name = "imageURLs" // a request has one list for images and imageURLs
		}
		loc = loc.At(RequestName(name))
		if indexed {
			at, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
			switch {
			case err != nil:
				// The brackets contain a map key, which the client chose. The location ends before
				// the key, because an error never repeats text of the client.
				return loc
			case name == "providerTokens" || name == "customSecrets":
				if names != nil {
					loc = loc.Named(names(name, at))
				}
			case name == "env":
				return loc
			default:
				loc = loc.At(at)
			}
		}
		if strings.HasSuffix(name, "Ref") || name == "imageURLs" {
			return loc // in the request, this location contains the value itself
		}
	}
	return loc
}

// renamedFields matches the CRD fields that have another name in requests.
var renamedFields = regexp.MustCompile(`\b(` + strings.Join(slices.DeleteFunc(slices.Sorted(maps.Keys(requestNames)),
	func(name string) bool {
		return requestNames[name] == name
	}), "|") + `)\b`)

// WithRequestNames replaces CRD field names by request field names in a sentence.
func WithRequestNames(sentence string) string {
	// Manifests name a Secret, but requests send the key itself.
	sentence = strings.ReplaceAll(sentence, "name a Secret in ", "send it as ")
	return renamedFields.ReplaceAllStringFunc(sentence, RequestName)
}
