package session

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Dollars is an exact amount of US dollars in units of 10^-12 dollars. The cost of one token is
// therefore exact if the price of a million tokens has at most 6 decimals. In JSON, an amount is a
// decimal number in a string, such as "0.000123".
type Dollars int64

// Dollar is one US dollar.
const Dollar Dollars = 1_000_000_000_000

// MaxDollars is the largest amount, about 9.2 million dollars. A larger sum becomes MaxDollars.
const MaxDollars Dollars = math.MaxInt64

// dollarDigits is the number of decimals. wholeDigits is the maximum number of digits before the
// decimal point.
const dollarDigits, wholeDigits = 12, 7

// ParseDollars parses a decimal number of US dollars with at most 12 decimals. It must be fast,
// because a ledger has many amounts.
func ParseDollars(text string) (Dollars, error) {
	whole, decimals, hasDecimals := strings.Cut(text, ".")
	if !isNumber(whole, wholeDigits) || hasDecimals && !isNumber(decimals, dollarDigits) {
		return 0, fmt.Errorf("%q is not an amount in US dollars", text)
	}
	padding := "000000000000"[len(decimals):]
	units, err := strconv.ParseUint(whole+decimals+padding, 10, 64) // at most 19 digits
	return Dollars(min(units, uint64(MaxDollars))), err
}

func isNumber(text string, most int) bool {
	return text != "" && len(text) <= most && strings.Trim(text, "0123456789") == ""
}

// DollarsOf converts an amount. It rounds up, and returns at least zero and at most MaxDollars.
func DollarsOf(amount *big.Rat) Dollars {
	if amount == nil || amount.Sign() <= 0 {
		return 0
	}
	units := new(big.Int).Mul(amount.Num(), big.NewInt(int64(Dollar)))
	units, rest := units.QuoRem(units, amount.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		units.Add(units, big.NewInt(1))
	}
	if !units.IsInt64() {
		return MaxDollars
	}
	return Dollars(units.Int64())
}

// Plus returns the sum of two amounts, at most MaxDollars.
func (d Dollars) Plus(other Dollars) Dollars {
	if other > 0 && d > MaxDollars-other {
		return MaxDollars
	}
	return d + other
}

// Times returns a multiple of an amount, at most MaxDollars. n must not be negative.
func (d Dollars) Times(n int64) Dollars {
	if n > 0 && d > MaxDollars/Dollars(n) {
		return MaxDollars
	}
	return d * Dollars(n)
}

// String returns the amount as a decimal number with all its digits.
func (d Dollars) String() string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	decimals := strconv.FormatInt(int64(Dollar+d%Dollar), 10)[1:]
	text := strconv.FormatInt(int64(d/Dollar), 10) + "." + decimals
	return sign + strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// Cents returns the amount for a message, rounded up to whole cents, such as "$49.98". It shows
// amounts below one cent with all digits.
func (d Dollars) Cents() string {
	const cent = Dollar / 100
	if d > 0 && d < cent {
		return "$" + d.String()
	}
	cents := d / cent
	if d%cent > 0 {
		cents++
	}
	return fmt.Sprintf("$%d.%02d", cents/100, cents%100)
}

// MarshalText writes the decimal number.
func (d Dollars) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a decimal number.
func (d *Dollars) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDollars(string(text))
	return err
}
