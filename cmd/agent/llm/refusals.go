package llm

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Refusal is the part of a request that made a provider refuse the request.
type Refusal string

// These are the parts of a request that a provider can refuse. RefusedImages means that the images
// are the cause. RefusedHistory means that any content of the messages may be the cause, even an
// image.
const (
	RefusedImages  Refusal = "images"
	RefusedHistory Refusal = "history"
)

// refusal returns the part of the request that the provider refused; empty if the content of the
// messages is not the cause. OpenAI's errors name the refused parameter. Anthropic's errors begin
// with the path of the refused field. Gateways quote the errors of both providers.
func (r providerError) refusal() Refusal {
	text := r.text()
	mentions := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	if mentions("tool_use_failed") { // the model's own answer was invalid
		return ""
	}
	switch r.status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		switch {
		case mentions("tool_use", "tool_call", "tool call", "tool_result", "function call", "signature"):
			return RefusedHistory
		case mentions("image", "multimodal", "vision"):
			return RefusedImages
		case strings.HasPrefix(r.param, "messages") || mentions("messages.", "messages["):
			return RefusedHistory
		}
	case http.StatusNotFound, http.StatusUnsupportedMediaType, http.StatusInternalServerError:
		if mentions("image input", "image_url", "support image", "multimodal") {
			return RefusedImages
		}
	}
	return ""
}

// text returns the error message and the whole body in lower case. It includes the body because
// gateways put the provider's message into fields of their own.
func (r providerError) text() string {
	return strings.ToLower(r.message + "\n" + strings.ReplaceAll(r.body, `\u003e`, ">"))
}

// tooLongSigns are phrases from errors about a request that is too long. They come from Anthropic,
// OpenAI, Google, xAI, Mistral, Bedrock, llama.cpp, vLLM and OpenRouter.
var tooLongSigns = []string{"context_length_exceeded", "prompt is too long", "exceed context limit",
	"maximum context length", "maximum prompt length", "context window", "context length", "context size",
	"exceed_context_size_error", "input token count", "input is too long"}

// windowForms match the size of the context window, in tokens, in errors about a request that is
// too long.
var windowForms = []*regexp.Regexp{
	regexp.MustCompile(`maximum (?:context|prompt) length (?:is|of) (\d[\d,]*)`),
	regexp.MustCompile(`(\d[\d,]*) maximum context length`),
	regexp.MustCompile(`tokens > (\d[\d,]*) maximum`),
	regexp.MustCompile(`context limit: \d+ \+ \d+ > (\d[\d,]*)`),
	regexp.MustCompile(`maximum number of tokens allowed \(?(\d[\d,]*)`),
	regexp.MustCompile(`n_ctx\\?":\s*(\d+)`),
	regexp.MustCompile(`context (?:window|length|size) (?:is|of) (?:only )?(\d[\d,]*)`),
}

const (
	minWindow = 1000
	maxWindow = 100_000_000
)

// window returns the model's context window according to the error, or 0.
func (r providerError) window() int {
	text := r.text()
	for _, form := range windowForms {
		if found := form.FindStringSubmatch(text); found != nil {
			n, err := strconv.Atoi(strings.ReplaceAll(found[1], ",", ""))
			if err == nil && n >= minWindow && n <= maxWindow {
				return n
			}
		}
	}
	return 0
}
