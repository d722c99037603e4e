package llm

import (
	"errors"
	"testing"
)

func TestProviderErrorsRevealTheContextWindowOrTheRefusedPart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status  int
		body    string
		kind    Kind
		window  int
		refused Refusal
	}{
		"OpenAI": {400, `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your ` +
			`messages resulted in 130000 tokens. Please reduce the length of the messages.","type":"invalid_request_error",` +
			`"param":"messages","code":"context_length_exceeded"}}`, Context, 128_000, ""},
		"OpenAI without a number": {400, `{"error":{"message":"Your input exceeds the context window of this model. ` +
			`Please adjust your input and try again.","type":"invalid_request_error","param":"input",` +
			`"code":"context_length_exceeded"}}`, Context, 0, ""},
		"Anthropic": {400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: ` +
			`210000 tokens \u003e 200000 maximum"}}`, Context, 200_000, ""},
		"Anthropic with max_tokens": {400, `{"type":"error","error":{"type":"invalid_request_error","message":"input ` +
			"length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` " +
			`and try again"}}`, Context, 200_000, ""},
		"Google": {400, `{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of ` +
			`tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}`, Context, 1_048_576, ""},
		"vLLM": {400, `{"object":"error","message":"This model's maximum context length is 16384 tokens. However, you ` +
			`requested 122946 tokens (112946 in the messages, 10000 in the completion). Please reduce the length of the ` +
			`messages or completion.","type":"BadRequestError","param":null,"code":400}`, Context, 16_384, ""},
		"OpenRouter": {400, `{"error":{"message":"This endpoint's maximum context length is 16384 tokens. However, you ` +
			`requested about 94307 tokens (94307 of text input). Please reduce the length of either one.","code":400,` +
			`"metadata":{"provider_name":null}}}`, Context, 16_384, ""},
		"a provider behind OpenRouter": {400, `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":` +
			`"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 210000 ` +
			`tokens > 200000 maximum\"}}"}}}`, Context, 200_000, ""},
		"LiteLLM": {400, `{"error":{"message":"litellm.ContextWindowExceededError: OpenAIException - This model's maximum ` +
			`context length is 8192 tokens.","type":null,"param":null,"code":"400"}}`, Context, 8192, ""},
		"Mistral": {400, `{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for ` +
			`model with 32768 maximum context length","type":"invalid_request_error"}`, Context, 32_768, ""},
		"xAI": {400, `{"code":"Client specified an invalid argument","error":{"message":"This model's maximum prompt ` +
			`length is 131072 but the request contains 140000 tokens."}}`, Context, 131_072, ""},
		"llama.cpp": {400, `{"error":{"code":400,"message":"the request exceeds the available context size, try ` +
			`increasing it","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}`, Context, 4096, ""},
		"Bedrock": {400, `{"message":"Input is too long for requested model."}`, Context, 0, ""},
		"a body that is too large": {413, `{"type":"error","error":{"type":"request_too_large","message":"Request exceeds ` +
			`the maximum size"}}`, Context, 0, ""},

		"a large image": {400, `{"type":"error","error":{"type":"invalid_request_error","message":` +
			`"messages.0.content.2.image.source.base64: image exceeds 5 MB maximum: 15908784 bytes > 5242880 bytes"}}`,
			Provider, 0, RefusedImages},
		"an OpenAI model that reads text": {400, `{"error":{"message":"Invalid content type. image_url is only supported ` +
			`by certain models.","type":"invalid_request_error","param":"messages.[1].content.[1].type","code":null}}`,
			Provider, 0, RefusedImages},
		"DeepSeek": {400, `{"error":{"message":"Failed to deserialize the JSON body into the target type: messages[4]: ` +
			"unknown variant `image_url`, expected `text` at line 1 column 395009\"" +
			`,"type":"invalid_request_error","param":null,"code":"invalid_request_error"}}`, Provider, 0, RefusedImages},
		"OpenRouter without images": {404, `{"error":{"message":"No endpoints found that support image input","code":404}}`,
			NotFound, 0, RefusedImages},
		"OpenAI's check of names": {400, `{"error":{"message":"Invalid 'messages[1].tool_calls[0].function.name': string ` +
			`does not match pattern.","type":"invalid_request_error","param":"messages[1].tool_calls[0].function.name",` +
			`"code":"invalid_value"}}`, Provider, 0, RefusedHistory},
		"Anthropic's check of names": {400, `{"type":"error","error":{"type":"invalid_request_error","message":` +
			`"messages.1.content.0.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"}}`, Provider, 0,
			RefusedHistory},
		"an image of a tool": {400, `{"type":"error","error":{"type":"invalid_request_error","message":` +
			`"messages.2.content.0.tool_result.content.1.image.source.base64.data: At least one of the image dimensions ` +
			`exceed max allowed size: 8000 pixels"}}`, Provider, 0, RefusedHistory},
		"a server that fails": {500, `{"error":{"message":"The server had an error while processing your request."}}`,
			Provider, 0, ""},
		"llama.cpp without images": {500, `{"error":{"code":500,"message":"image input is not supported - hint: if this is ` +
			`unexpected, you may need to provide the mmproj","type":"server_error"}}`, Provider, 0, RefusedImages},
		"an invalid tool": {400, `{"error":{"message":"Invalid 'tools[3].function.name'","param":"tools[3].function.name"}}`,
			Provider, 0, ""},
		"an answer that Groq refuses": {400, `{"error":{"message":"Failed to call a function. Please adjust your prompt.",` +
			`"type":"invalid_request_error","code":"tool_use_failed","failed_generation":"messages."}}`, Provider, 0, ""},
		"no credit": {400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too ` +
			`low to access the Anthropic API."}}`, Provider, 0, ""},
	} {
		got, ok := errors.AsType[*Error](parseProviderError(c.status, c.body).explain(""))
		if !ok || got.Kind != c.kind || got.Window != c.window || got.Refused != c.refused {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
