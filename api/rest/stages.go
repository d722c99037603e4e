package rest

import (
	"encoding/json"
	"slices"
)

// maxRounds bounds how often a bad request is tried again: types, schema, rules, webhook.
const maxRounds = 4

// AllDetails finds all that is wrong with a request, given what was found first. It is checked in
// stages, and a stage is not reached while the one before it complains, so what was complained
// about is left out and the rest is checked again.
func AllDetails(fields Body, details []Detail, check func(Body) []Detail) []Detail {
	all, found := details, details
	for range maxRounds {
		for _, detail := range found {
			if len(detail.Loc) < 2 {
				return all // about the whole: nothing can be left out
			}
			name, _ := detail.Loc[1].(string)
			delete(fields, name)
			if _, has := fields["repository"]; !has && slices.Contains([]string{"repository", "suggested_task",
				"create_microagent"}, name) {
				// A branch needs a repository; that it has lost it is not the client's mistake.
				fields["repository"] = json.RawMessage(`"owner/name"`)
			}
		}
		if found = check(fields); len(found) == 0 {
			break
		}
		all = append(all, found...)
	}
	return all
}
