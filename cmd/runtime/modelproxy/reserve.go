package modelproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

const (
	// defaultMaxOutput is the maximum number of output tokens if neither the request nor the model
	// has a limit.
	defaultMaxOutput = 32768
	// hiddenTokens is an upper bound on the tokens that a provider itself adds to the input of a
	// call, for example for tools.
	hiddenTokens = 2048
	// largestWindow is the assumed context window of a model, in tokens, if the real one is
	// unknown.
	largestWindow = 1 << 20
	// largestOutput is the highest token limit or number of choices that a request may contain.
	largestOutput = 1 << 30
)

// These request fields affect the number of output tokens.
const (
	maxTokensField     = "max_tokens"
	maxCompletionField = "max_completion_tokens"
	maxOutputField     = "max_output_tokens"
	choicesField       = "n"
	predictionField    = "prediction"
	googleConfig       = "generationConfig"
	googleConfigSnake  = "generation_config"
)

// outputFields are the request fields that limit the output, for each API.
var outputFields = map[wire][]string{chat: {maxTokensField, maxCompletionField}, anthropic: {maxTokensField},
	responses: {maxOutputField}}

// reserve reserves the highest possible cost of a call if the session has a spending limit. It
// returns a problem if the call must not be sent.
func (p *Proxy) reserve(ctx context.Context, call route, to *target, ask *ask, entry *entry) *problem {
	var highest session.Dollars
	if p.options.Limit > 0 {
		model := p.options.Models.Find(entry.provider, entry.model)
		output, err := ask.limitOutput(call.wire, to, model)
		if err != nil {
			return &problem{http.StatusBadRequest, "invalid_request_error", err.Error()}
		}
		highest = ask.highestCost(call.wire, model, output)
	}
	err := p.account.begin(ctx, entry, highest)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		p.spend.stop(err.Error())
	}
	return &problem{http.StatusPaymentRequired, limitType, err.Error()}
}

// highestCost returns the highest possible cost of a call with this number of output tokens. A
// token has at least one byte, so the number of bytes bounds the number of input tokens. If the
// provider may add input, the model's context window is the bound. Each input token counts with the
// highest input price. The model must have prices.
func (a *ask) highestCost(wire wire, model session.Model, output int64) session.Dollars {
	input, escaped := int64(len(a.body))+hiddenTokens, escapedLetter.Match(a.body)
	if escaped || a.addsInput(wire) {
		input = max(input, cmp.Or(model.ContextWindow, largestWindow))
	}
	each := parseCost(string(model.Input))
	prices := []*big.Rat{parseCost(string(model.CacheRead)), parseCost(string(model.CacheWrite))}
	if wire == anthropic && (escaped || cacheTTL.Match(a.body)) {
		prices = append(prices, hourPrice(each))
	}
	for _, price := range prices {
		if price != nil && price.Cmp(each) > 0 {
			each = price
		}
	}
	sum := new(big.Rat).Mul(big.NewRat(input, 1_000_000), each)
	ofOutput := new(big.Rat).Mul(big.NewRat(output, 1_000_000), parseCost(string(model.Output)))
	return session.DollarsOf(sum.Add(sum, ofOutput))
}

// limitOutput returns the highest possible number of output tokens. If the request does not limit
// them, limitOutput adds the model's maximum or defaultMaxOutput to the request.
func (a *ask) limitOutput(wire wire, to *target, model session.Model) (tokens int64, err error) {
	most := model.MaxOutput
	if most == 0 {
		most = defaultMaxOutput
	}
	if wire == google {
		return a.limitGoogleOutput(most)
	}
	names := outputFields[wire]
	for _, name := range names {
		given, err := number(name, a.fields[name])
		if err != nil {
			return 0, err
		}
		tokens = max(tokens, given)
	}
	choices, err := number(choicesField, a.fields[choicesField])
	if err != nil {
		return 0, err
	}
	if tokens == 0 {
		name := names[0]
		if wire == chat && (to.endpoint.base.Host == openAIHost ||
			strings.HasSuffix(to.endpoint.base.Host, azureSuffix)) {
			name = maxCompletionField // newer models of OpenAI refuse max_tokens
		}
		tokens, a.body = most, a.with(name, most)
	}
	// A request may contain a prediction of the output. Its wrong tokens cost as much as output. A
	// token has at least one byte, so the prediction has at most as many tokens as bytes.
	return tokens*max(1, choices) + int64(len(a.fields[predictionField])), nil
}

// azureSuffix is the end of the names of Azure's hosts for OpenAI's models.
const azureSuffix = ".openai.azure.com"

// limitGoogleOutput does the same as limitOutput for Gemini's API. This API accepts two names for
// each limit, and a request may contain both. The function writes the higher value under one name
// and removes the other name, so that the endpoint uses the same value as the proxy.
func (a *ask) limitGoogleOutput(most int64) (tokens int64, err error) {
	name := googleConfig
	if a.fields[googleConfigSnake] != nil {
		name = googleConfigSnake
		if a.fields[googleConfig] != nil {
			return 0, fmt.Errorf("the request must not contain both %s and %s", googleConfig, googleConfigSnake)
		}
	}
	config := map[string]json.RawMessage{}
	if value := a.fields[name]; value != nil && json.Unmarshal(value, &config) != nil {
		return 0, fmt.Errorf("the field %s is not an object", name)
	}
	choices := int64(0)
	for _, field := range []struct {
		names [2]string
		into  *int64
	}{{[2]string{"maxOutputTokens", "max_output_tokens"}, &tokens},
		{[2]string{"candidateCount", "candidate_count"}, &choices}} {
		for key, value := range config {
			if !strings.EqualFold(key, field.names[0]) && !strings.EqualFold(key, field.names[1]) {
				continue
			}
			given, err := number(key, value)
			if err != nil {
				return 0, err
			}
			*field.into = max(*field.into, given)
			delete(config, key)
		}
	}
	if tokens == 0 {
		tokens = most
	}
	config["maxOutputTokens"], _ = json.Marshal(tokens)
	if choices > 0 {
		config["candidateCount"], _ = json.Marshal(choices)
	}
	a.body = a.with(name, config)
	return tokens * max(1, choices), nil
}

// number parses a number in a request. It returns zero if the field is missing or null.
func number(name string, value json.RawMessage) (n int64, err error) {
	if value == nil {
		return 0, nil
	}
	if err := json.Unmarshal(value, &n); err != nil || n < 0 || n > largestOutput {
		return 0, fmt.Errorf("the field %s is not a valid number", name)
	}
	return n, nil
}
