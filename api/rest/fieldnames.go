package rest

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// listNames tells what a request calls an entry of one of the spec's lists that is an object in the request.
type listNames func(list string, index int) string

// irregular are the names of the spec that do not become those of a request by the rule.
var irregular = map[string]string{
	"llmAPIKeyRef":     "llm_api_key",
	"searchAPIKeyRef":  "search_api_key",
	"sandboxAPIKeyRef": "sandbox_api_key",
	"replayJSONRef":    "replay_json",
}

var (
	hump = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	// mentioned are names of the spec in messages of the API server and the webhook.
	mentioned = regexp.MustCompile(`\b(initialUserMsg|imageURLs|replayJSONRef|suggestedTask|createMicroagent|selectedBranch|gitProvider|taskType|issueNumber|conversationInstructions|` +
		`mcpConfig|sseServers|shttpServers|stdioServers|apiKeyRef|secretRef|llmAPIKeyRef|llmModel|llmBaseURL|secretsStore|providerTokens|customSecrets|tokenRef|` +
		`sandboxBaseContainerImage|sandboxRuntimeContainerImage|maxIterations|maxBudgetPerTask)\b`)
	subject = regexp.MustCompile(`^\S+ in body `)
	// typeName is what a rule about a whole object has in place of the value.
	typeName = regexp.MustCompile(`^(object|array|string|integer|number|boolean)$`)
)

// requestName is what a request calls a field of the spec.
func requestName(name string) string {
	if irregular := irregular[name]; irregular != "" {
		return irregular
	}
	return strings.TrimSuffix(strings.ToLower(hump.ReplaceAllString(name, "${1}_${2}")), "_ref")
}

// requestLocation is where a request has what stands at this path of an object.
func requestLocation(path string, names listNames) location {
	loc := location{"body"}
	if path == "metadata.name" || path == "" || path == "<nil>" {
		return loc.at("conversation_id")
	}
	for step := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(path, "."), "spec."), ".") {
		name, index, indexed := strings.Cut(step, "[")
		loc = loc.at(requestName(name))
		if indexed {
			at, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
			switch {
			case err != nil:
				return loc // a key in place of a position; it is the client's own text, so it is not repeated
			case name == "providerTokens" || name == "customSecrets":
				loc = loc.name(names.of(name, at))
			case name == "env":
				return loc
			default:
				loc = loc.at(at)
			}
		}
		if strings.HasSuffix(name, "Ref") {
			return loc // the request has the value there
		}
	}
	return loc
}

func (n listNames) of(list string, index int) string {
	if n == nil {
		return ""
	}
	return n(list, index)
}

// invalidDetails says in the terms of a request what the API server says of an object.
func invalidDetails(causes []metav1.StatusCause, names listNames) []Detail {
	var details []Detail
	for _, cause := range causes {
		if strings.Contains(cause.Message, "some validation rules were not checked") {
			continue // the rest is asked for separately
		}
		kind, msg := explain(cause)
		details = append(details, Detail{Type: kind, Loc: requestLocation(cause.Field, names), Msg: msg})
	}
	return details
}

// explain is the type and message of a cause, without the value that the API server puts into it.
func explain(cause metav1.StatusCause) (kind, msg string) {
	value, detail := splitCause(cause.Message)
	detail = subject.ReplaceAllString(detail, "Input ")
	if len(value) > 2 && !typeName.MatchString(value) && strings.Contains(detail, value) {
		detail = ""
	}
	switch field.ErrorType(cause.Type) {
	case field.ErrorTypeRequired:
		return "missing", "Field required"
	case field.ErrorTypeNotSupported:
		return "enum", "Input should be one of the " + withDefault(detail, "supported values")
	case field.ErrorTypeTooLong:
		return "string_too_long", "String is too long: " + withDefault(detail, "it exceeds the limit")
	case field.ErrorTypeTooMany:
		return "too_long", "List is too long: " + withDefault(detail, "it exceeds the limit")
	case field.ErrorTypeDuplicate:
		return "value_error", "An entry is listed twice"
	}
	// Who writes an object names a Secret; who sends a request sends the key.
	detail = strings.ReplaceAll(detail, "name a Secret in ", "send it as ")
	detail = mentioned.ReplaceAllStringFunc(withDefault(detail, "Input is not allowed here"), requestName)
	for _, known := range []struct{ phrase, kind string }{
		{"greater than or equal", "greater_than_equal"},
		{"less than or equal", "less_than_equal"},
		{"chars long", "string_too_short"},
		{"should match", "string_pattern_mismatch"},
	} {
		if strings.Contains(detail, known.phrase) {
			return known.kind, detail
		}
	}
	return "value_error", detail
}

func withDefault(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// splitCause takes "Invalid value: <value>: detail" apart. The value is quoted, JSON, or left out.
func splitCause(message string) (value, detail string) {
	_, rest, found := strings.Cut(message, ": ")
	if !found {
		return "", ""
	}
	if quoted, err := strconv.QuotedPrefix(rest); err == nil {
		value, _ = strconv.Unquote(quoted)
		return value, strings.TrimPrefix(rest[len(quoted):], ": ")
	}
	var parsed json.RawMessage
	decoder := json.NewDecoder(strings.NewReader(rest))
	if decoder.Decode(&parsed) == nil {
		return string(parsed), strings.TrimPrefix(rest[decoder.InputOffset():], ": ")
	}
	return "", rest
}
