package modelproxy

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// Counts is an amount of model usage.
type Counts struct {
	// Calls counts the started calls, except calls that failed at the endpoint and calls whose
	// reservation was refused.
	Calls int64 `json:"calls"`
	// Input and Output count tokens. Input does not include tokens that were read from or written
	// to a cache.
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cacheRead"`
	CacheWrite int64 `json:"cacheWrite"`
	// Cost is the cost in US dollars of all calls with a known cost. Unpriced counts the calls with
	// an unknown cost.
	Cost     Cost  `json:"cost"`
	Unpriced int64 `json:"unpriced,omitempty"`
}

func (c Counts) tokens() int64 { return c.Input + c.Output + c.CacheRead + c.CacheWrite }

// Usage is the session's usage of the model.
type Usage struct {
	// Session is the total usage. Turn is the usage of the current turn or, between two turns, the
	// usage since the last turn.
	Session Counts `json:"session"`
	Turn    Counts `json:"turn"`
	TurnID  string `json:"turnID,omitempty"`
	// Model, Context and ContextWindow describe the last call: its model, its number of tokens, and
	// the model's maximum number of tokens. Unknown values are zero.
	Model         string `json:"model,omitempty"`
	Context       int64  `json:"context,omitempty"`
	ContextWindow int64  `json:"contextWindow,omitempty"`
}

// Cost is an exact sum of US dollars. The zero value is 0 dollars.
type Cost struct{ sum *big.Rat }

// String returns the sum as a decimal number with all digits.
func (c Cost) String() string {
	sum := c.Rat()
	digits, exact := sum.FloatPrec()
	if !exact {
		digits = 18
	}
	return sum.FloatString(digits)
}

// Rat returns a copy of the sum.
func (c Cost) Rat() *big.Rat {
	return new(big.Rat).Set(cmp.Or(c.sum, new(big.Rat)))
}

// MarshalText writes the decimal number.
func (c Cost) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a decimal number.
func (c *Cost) UnmarshalText(text []byte) error {
	if len(text) > maxSum || !sumForm.Match(text) {
		return fmt.Errorf("%q is not an amount in US dollars", text)
	}
	c.sum, _ = new(big.Rat).SetString(string(text)) // the pattern allows only numbers
	return nil
}

// maxSum bounds the length of a sum, in bytes, because arithmetic with very long numbers is slow.
const maxSum = 191

var sumForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

func (c Cost) plus(more *big.Rat) Cost { return Cost{new(big.Rat).Add(c.Rat(), more)} }

func (c Counts) plus(t tokens, cost *big.Rat) Counts {
	c.Input += t.input
	c.Output += t.output
	c.CacheRead += t.cacheRead
	c.CacheWrite += t.cacheWrite
	c.Cost = c.Cost.plus(cost)
	return c
}

// entry is one call. It contains the known usage of the call, and the part of this usage that is
// already counted.
type entry struct {
	// model is the call's model. provider is the provider of the session's model.
	model, provider string
	// turn is the value of spend.turn when the call started.
	turn int
	// used contains the call's token counts. reported is the cost that the endpoint reported, or
	// nil.
	used     tokens
	reported *big.Rat
	hasUsage bool
	// mayCost is set if the endpoint may have used tokens, even if no response arrived. If the
	// endpoint reports no usage of such a call, the call's cost is unknown. complete is set if the
	// agent received the whole response.
	mayCost, complete bool
	// failed is set if the endpoint failed or the reservation was refused. A failed call does not
	// count as a call, but its tokens and its cost count.
	failed bool

	counted     tokens
	countedCost *big.Rat
	unpriced    bool

	// began is set if account.begin allowed the call. With a spending limit, highest is the highest
	// possible cost of the call, and day is the day of its reservation.
	began   bool
	highest session.Dollars
	day     string
	// partial is set if the response broke off. The reported usage may then be incomplete. received
	// is the size of the response in bytes.
	partial  bool
	received int
}

// add adds reported usage. Reports are cumulative, so the largest value of each count is used.
func (e *entry) add(t tokens, cost *big.Rat) {
	for of, now := range map[*int64]int64{
		&e.used.input: t.input, &e.used.output: t.output, &e.used.cacheRead: t.cacheRead, &e.used.cacheWrite: t.cacheWrite,
		&e.used.hourWrite: t.hourWrite,
	} {
		if now <= maxTokens {
			*of = max(*of, now)
		}
	}
	if cost != nil {
		e.reported = cost
	}
	e.hasUsage = true
}

// bytesPerToken is low, so that an estimated number of tokens is more likely too high than too low.
const bytesPerToken = 3

// estimate sets the usage of a call whose response broke off before the endpoint reported usage.
// sent and received are sizes in bytes.
func (e *entry) estimate(sent, received int) {
	e.used = tokens{input: int64(sent / bytesPerToken), output: int64(received / bytesPerToken)}
}

// lacksPrice reports whether the call's cost is unknown, because its tokens have no price or its
// usage was not reported.
func (e *entry) lacksPrice(cost *big.Rat) bool {
	if e.used.all() > 0 {
		return cost == nil
	}
	return e.mayCost && e.reported == nil
}

func (t tokens) all() int64 { return t.input + t.output + t.cacheRead + t.cacheWrite }

// reportsCost are the providers whose responses report a call's cost. Their models need no price.
var reportsCost = map[string]bool{"openrouter": true, "litellm_proxy": true}

// HasCost reports whether the cost of calls to a model can be known. model has the form
// provider/model.
func HasCost(models session.Models, model string) bool {
	provider := providerOf(model)
	return hasCost(models, provider, model[strings.Index(model, "/")+1:])
}

func hasCost(models session.Models, provider, name string) bool {
	return reportsCost[provider] || costOf(models.Find(provider, name), tokens{}) != nil
}

// Find returns the entry of a model, or an empty entry. model has the form provider/model.
func Find(models session.Models, model string) session.Model {
	slash := strings.Index(model, "/")
	return models.Find(model[:max(slash, 0)], model[slash+1:])
}

// costOf returns the price of these tokens, or nil if the model has no price.
func costOf(model session.Model, t tokens) *big.Rat {
	input, output := parseCost(string(model.Input)), parseCost(string(model.Output))
	if input == nil || output == nil {
		return nil
	}
	read := cmp.Or(parseCost(string(model.CacheRead)), input)
	write := cmp.Or(parseCost(string(model.CacheWrite)), input)
	hour := min(t.hourWrite, t.cacheWrite)
	sum := new(big.Rat)
	for _, part := range []struct {
		tokens int64
		price  *big.Rat
	}{{t.input, input}, {t.output, output}, {t.cacheRead, read}, {t.cacheWrite - hour, write},
		{hour, hourPrice(input)}} {
		sum.Add(sum, new(big.Rat).Mul(big.NewRat(part.tokens, 1_000_000), part.price))
	}
	return sum
}

// hourPrice returns Anthropic's price of input tokens that are cached for one hour: two times the
// price of input tokens.
func hourPrice(input *big.Rat) *big.Rat { return new(big.Rat).Add(input, input) }
