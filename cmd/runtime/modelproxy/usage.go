package modelproxy

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// Counts are what was used of the model.
type Counts struct {
	// Calls that were begun.
	Calls int64 `json:"calls"`
	// Input and Output tokens; those of the input that were read from or written to a cache are
	// counted apart.
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cacheRead"`
	CacheWrite int64 `json:"cacheWrite"`
	// Cost in US dollars, of those calls whose price is known. Unpriced is how many used tokens
	// without one, or did not tell what they used.
	Cost     Cost  `json:"cost"`
	Unpriced int64 `json:"unpriced,omitempty"`
}

// Usage of the model.
type Usage struct {
	// Session is all there was, and Turn what the turn under way has of it; what came after the
	// last turn where none is.
	Session Counts `json:"session"`
	Turn    Counts `json:"turn"`
	TurnID  string `json:"turnID,omitempty"`
	// Model of the last call, how many tokens that call held, and how many the model can take; zero
	// where that is not known.
	Model         string `json:"model,omitempty"`
	Context       int64  `json:"context,omitempty"`
	ContextWindow int64  `json:"contextWindow,omitempty"`
}

// Cost is an exact sum of US dollars. Its zero value is zero.
type Cost struct{ sum *big.Rat }

// String is the sum as a decimal number, with all its digits.
func (c Cost) String() string {
	sum := c.Rat()
	digits, exact := sum.FloatPrec()
	if !exact {
		digits = 18
	}
	return sum.FloatString(digits)
}

// Rat is the sum as a number of its own.
func (c Cost) Rat() *big.Rat {
	return new(big.Rat).Set(cmp.Or(c.sum, new(big.Rat)))
}

// MarshalText writes the decimal number.
func (c Cost) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a decimal number.
func (c *Cost) UnmarshalText(text []byte) error {
	if !sumForm.Match(text) {
		return fmt.Errorf("%q is no sum of money", text)
	}
	c.sum, _ = new(big.Rat).SetString(string(text)) // the form says that it is a number
	return nil
}

// sumForm bounds what is read from a file.
var sumForm = regexp.MustCompile(`^[0-9]{1,30}(\.[0-9]{1,160})?$`)

func (c Cost) plus(more *big.Rat) Cost { return Cost{new(big.Rat).Add(c.Rat(), more)} }

func (c Counts) plus(t tokens, cost *big.Rat) Counts {
	c.Input += t.input
	c.Output += t.output
	c.CacheRead += t.cacheRead
	c.CacheWrite += t.cacheWrite
	c.Cost = c.Cost.plus(cost)
	return c
}

// entry is one call: what it used as far as is known, and what of that is in the counts.
type entry struct {
	model string
	// turn that the call belongs to.
	turn int
	// used, and the cost that the endpoint itself reported.
	used     tokens
	reported *big.Rat
	told     bool
	// answered: the endpoint did something, and should have told what it used.
	answered bool

	counted     tokens
	countedCost *big.Rat
	unpriced    bool
}

// add what the endpoint told. It tells sums, in parts: each number is at its largest when it is
// complete.
func (e *entry) add(t tokens, cost *big.Rat) {
	for of, now := range map[*int64]int64{
		&e.used.input: t.input, &e.used.output: t.output, &e.used.cacheRead: t.cacheRead, &e.used.cacheWrite: t.cacheWrite,
	} {
		if now <= mostTokens {
			*of = max(*of, now)
		}
	}
	if cost != nil {
		e.reported = cost
	}
	e.told = true
}

// lacksPrice says whether what a call cost is not known: the tokens that it used have no price, or it
// did not tell what it used.
func (e *entry) lacksPrice(cost *big.Rat) bool {
	if e.told {
		return e.used.all() > 0 && cost == nil
	}
	return e.answered && e.reported == nil
}

func (t tokens) all() int64 { return t.input + t.output + t.cacheRead + t.cacheWrite }

// dated is the end of a model's name that says of when it is.
var dated = regexp.MustCompile(`[-@](20[0-9]{6}|20[0-9]{2}-[0-9]{2}-[0-9]{2}|latest)$`)

// find what is known of a model that a request names. It may be named without its provider, with
// that of the model behind a gateway, or with a date.
func find(models session.Models, provider, name string) session.Model {
	for _, name := range []string{name, dated.ReplaceAllString(name, "")} {
		names := []string{name, name[strings.LastIndex(name, "/")+1:]}
		if provider != "" {
			names = append([]string{provider + "/" + name}, names...)
		}
		for _, candidate := range names {
			if model, found := models[candidate]; found {
				return model
			}
		}
	}
	return session.Model{}
}

// ContextWindow of a model, such as provider/model, in tokens; 0 where it is not known.
func ContextWindow(models session.Models, model string) int64 {
	slash := strings.Index(model, "/")
	return find(models, model[:max(slash, 0)], model[slash+1:]).ContextWindow
}

// costOf tokens at the prices of a model; nil where it has none.
func costOf(model session.Model, t tokens) *big.Rat {
	input, output := parseCost(string(model.Input)), parseCost(string(model.Output))
	if input == nil || output == nil {
		return nil
	}
	read := cmp.Or(parseCost(string(model.CacheRead)), input)
	write := cmp.Or(parseCost(string(model.CacheWrite)), input)
	sum := new(big.Rat)
	for _, part := range []struct {
		tokens int64
		price  *big.Rat
	}{{t.input, input}, {t.output, output}, {t.cacheRead, read}, {t.cacheWrite, write}} {
		sum.Add(sum, new(big.Rat).Mul(big.NewRat(part.tokens, 1_000_000), part.price))
	}
	return sum
}
