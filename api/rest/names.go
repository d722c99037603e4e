package rest

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EntryNames tells what a request calls an entry of one of the kinds' lists that is an object in
// the request.
type EntryNames func(list string, index int) string

// LocationOf is where a request has what stands at this path of an object, such as
// spec.mcpConfig.sseServers[0].url.
func LocationOf(path string, names EntryNames) Location {
	loc := Location{"body"}
	if path == "metadata.name" || path == "" || path == "<nil>" {
		return loc.At("conversation_id")
	}
	for step := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(path, "."), "spec."), ".") {
		name, index, indexed := strings.Cut(step, "[")
		if name == "images" {
			name = "imageURLs" // of which a request has the one list
		}
		loc = loc.At(RequestName(name))
		if indexed {
			at, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
			switch {
			case err != nil:
				return loc // a key in place of a position; it is the client's own text, so it is not repeated
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
			return loc // the request has the value there
		}
	}
	return loc
}

// mentioned are the names of the kinds that requests have others for.
var mentioned = regexp.MustCompile(`\b(` + strings.Join(slices.DeleteFunc(slices.Sorted(maps.Keys(requestNames)),
	func(name string) bool {
		return requestNames[name] == name
	}), "|") + `)\b`)

// InRequestsTerms says a sentence about an object with the names that requests have for its fields.
func InRequestsTerms(sentence string) string {
	// Who writes an object names a Secret; who sends a request sends the key.
	sentence = strings.ReplaceAll(sentence, "name a Secret in ", "send it as ")
	return mentioned.ReplaceAllStringFunc(sentence, RequestName)
}
