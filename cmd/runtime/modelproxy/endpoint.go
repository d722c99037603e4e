package modelproxy

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

const openAIHost = "api.openai.com"

// publicEndpoints are the public base URLs of providers. The keys are the providers' prefixes in
// the names of models.
var publicEndpoints = map[string]string{
	"openai":       "https://" + openAIHost + "/v1",
	"anthropic":    "https://api.anthropic.com",
	"cerebras":     "https://api.cerebras.ai/v1",
	"deepinfra":    "https://api.deepinfra.com/v1/openai",
	"deepseek":     "https://api.deepseek.com/v1",
	"fireworks":    "https://api.fireworks.ai/inference/v1",
	"fireworks_ai": "https://api.fireworks.ai/inference/v1",
	"gemini":       "https://generativelanguage.googleapis.com/v1beta/openai",
	"groq":         "https://api.groq.com/openai/v1",
	"mistral":      "https://api.mistral.ai/v1",
	"moonshot":     "https://api.moonshot.ai/v1",
	"openrouter":   "https://openrouter.ai/api/v1",
	"together":     "https://api.together.xyz/v1",
	"together_ai":  "https://api.together.xyz/v1",
	"xai":          "https://api.x.ai/v1",
}

func providerOf(model string) string {
	provider, _, named := strings.Cut(model, "/")
	if !named {
		return ""
	}
	return strings.ToLower(provider)
}

// endpoint is the model's server. The proxy sends calls to no other server.
type endpoint struct{ base url.URL }

// locate returns the endpoint at the user's base URL. If there is no base URL, it returns the
// public endpoint of the model's provider.
func locate(baseURL, model string) (*endpoint, error) {
	if baseURL == "" {
		provider := providerOf(model)
		public, known := publicEndpoints[provider]
		switch {
		case model == "":
			return nil, errors.New("llm_model: no model is set")
		case provider == "":
			return nil, fmt.Errorf("llm_model: %s names no provider: write provider/model, such as openai/gpt-5, or set "+
				"llm_base_url", model)
		case !known:
			return nil, fmt.Errorf("llm_model: no endpoint is known for %s: set llm_base_url", provider)
		}
		baseURL = public
	}
	base, err := url.Parse(strings.TrimSpace(baseURL))
	switch {
	case err != nil: // do not wrap err: its URL may contain a secret
		return nil, errors.New("llm_base_url: is not a valid URL")
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil, errors.New("llm_base_url: must be an http or https URL")
	case base.User != nil:
		return nil, errors.New("llm_base_url: must not contain a user name or password")
	}
	base.Fragment, base.RawFragment = "", ""
	return &endpoint{*base}, nil
}

// unsuitable returns an error if OpenAI serves the model only through the responses API, which the
// agent does not use. It checks only OpenAI's own endpoint, because gateways convert calls between
// the APIs.
func (p *Proxy) unsuitable(to *endpoint, model string) error {
	agent := p.options.Agent
	if agent == nil || agent.Responses || to.base.Host != openAIHost ||
		Find(p.options.Models, model).API != session.APIResponses {
		return nil
	}
	return fmt.Errorf("llm_model: OpenAI serves %s only through its responses API, which the agent %s does not use: "+
		"choose another model or another agent", model, agent.Name)
}

// url returns the URL of a call. Like the SDKs, it accepts a base URL with or without /v1 at the
// end.
func (e *endpoint) url(call route, query string) *url.URL {
	target := e.base
	path := strings.TrimRight(target.EscapedPath(), "/")
	switch {
	case call.wire == anthropic:
		// A base URL for Anthropic's SDK does not contain /v1, because the SDK adds it. Add it
		// here, unless the base URL already ends with it.
		path = strings.TrimSuffix(path, "/v1") + "/v1"
	case call.wire == google:
		path, query = googleBase(path), googleQuery(query)
	case path == "":
		path = "/v1"
	}
	path += call.path
	target.Path, _ = url.PathUnescape(path) // cannot fail: every part of the path is escaped
	target.RawPath = path
	target.RawQuery = strings.Trim(target.RawQuery+"&"+query, "&")
	return &target
}
