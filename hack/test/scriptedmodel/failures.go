package scriptedmodel

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
)

// failureForm describes how the providers report one kind of failure.
type failureForm struct {
	status int
	// kind and words are the type and the message in Anthropic's API.
	kind, words string
	// openAIKind, code and openAIWords are the type, the code and the message in OpenAI's API.
	openAIKind, code, openAIWords string
}

var failures = map[FailureKind]failureForm{
	RateLimit: {http.StatusTooManyRequests,
		"rate_limit_error", "This request would exceed your organization's rate limit.",
		"requests", "rate_limit_exceeded", "Rate limit reached for requests."},
	BadKey: {http.StatusUnauthorized,
		"authentication_error", "invalid x-api-key",
		"invalid_request_error", "invalid_api_key", "Incorrect API key provided."},
	NoSuchModel: {http.StatusNotFound,
		"not_found_error", "model: no-such-model",
		"invalid_request_error", "model_not_found", "The model `no-such-model` does not exist or you do not have access to " +
			"it."},
	ContextTooLong: {http.StatusBadRequest,
		"invalid_request_error", "prompt is too long: 130000 tokens > 128000 maximum",
		"invalid_request_error", "context_length_exceeded", "This model's maximum context length is 128000 tokens. " +
			"However, your messages resulted in 130000 tokens."},
	Internal: {http.StatusInternalServerError,
		"api_error", "Internal server error",
		"server_error", "", "The server had an error while processing your request."},
	Overloaded: {529,
		"overloaded_error", "Overloaded",
		"server_error", "", "The engine is currently overloaded."},
	SessionLimit: {http.StatusPaymentRequired,
		"parley_limit", "the session's limit is reached",
		"parley_limit", "", "the session's limit is reached"},
	NoCredit: {http.StatusTooManyRequests,
		"invalid_request_error", "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing " +
			"to upgrade or purchase credits.",
		"insufficient_quota", "insufficient_quota", "You exceeded your current quota, please check your plan and billing " +
			"details."},
	Forbidden: {http.StatusForbidden,
		"permission_error", "Your API key does not have permission to use the specified resource.",
		"invalid_request_error", "unsupported_country_region_territory", "Country, region, or territory not supported"},
	Unavailable: {http.StatusServiceUnavailable,
		"api_error", "Service unavailable",
		"server_error", "", "The server is temporarily unavailable. Please retry later."},
	GatewayPage: {status: http.StatusBadGateway},
	BadRequest: {http.StatusBadRequest,
		"invalid_request_error", "bad request",
		"invalid_request_error", "", "bad request"},
}

// googleStatus maps HTTP statuses to Google's status names.
var googleStatus = map[int]string{
	http.StatusBadRequest: "INVALID_ARGUMENT", http.StatusUnauthorized: "UNAUTHENTICATED",
	http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND",
	http.StatusPaymentRequired: "FAILED_PRECONDITION", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED",
	http.StatusInternalServerError: "INTERNAL", http.StatusServiceUnavailable: "UNAVAILABLE", 529: "UNAVAILABLE",
}

func writeFailure(w http.ResponseWriter, wire Wire, f Failure) {
	form := failures[f.Kind]
	if f.Kind == NoCredit && wire == Messages {
		form.status = http.StatusBadRequest
	}
	words, body := form.openAIWords, map[string]any(nil)
	if wire == Messages {
		words = form.words
	}
	if f.Message != "" {
		words = f.Message
	}
	switch wire {
	case Messages:
		body = map[string]any{"type": "error", "error": map[string]any{"type": form.kind, "message": words},
			"request_id": "req_scripted"}
	case GenerateContent:
		body = map[string]any{"error": map[string]any{"code": form.status, "message": words,
			"status": googleStatus[form.status]}}
	default:
		var code any
		if form.code != "" {
			code = form.code
		}
		body = map[string]any{"error": map[string]any{"type": form.openAIKind, "message": words, "code": code, "param": nil}}
	}
	switch {
	case f.Kind == GatewayPage:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(form.status)
		_, _ = io.WriteString(w, "<html><head><title>502 Bad Gateway</title></head></html>")
		return
	case f.InStream && wire == Messages:
		out := newEvents(w)
		out.event("error", body)
		out.flush()
		return
	case f.InStream:
		out := newEvents(w)
		out.event("", body)
		out.flush()
		return
	}
	if f.RetryAfter >= 0 && (f.RetryAfter > 0 || f.Kind == RateLimit || f.Kind == Overloaded || f.Kind == Internal) {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	writeJSON(w, form.status, body)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
