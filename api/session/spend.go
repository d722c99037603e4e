package session

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ArchiveSpend receives the SpendReport of a session. The response is a SpendGrant.
const ArchiveSpend = "/spend"

// Layouts of periods, for time.Format. All periods are in UTC.
const (
	DayForm   = "2006-01-02"
	MonthForm = "2006-01"
)

// SpendClaims say who pays for a session, and the limits with which the session started. The
// manager signs them in the session's token for the archive.
type SpendClaims struct {
	// Owner identifies the person who pays: the username in spec.owner of the UserSettings. If
	// spec.owner is not set, Owner is the UID of the UserSettings.
	Owner     string `json:"owner"`
	Namespace string `json:"namespace"`
	// PerUser limits all sessions of the owner together. PerNamespace limits all sessions of the
	// namespace together.
	PerUser      SpendLimits `json:"perUser,omitzero"`
	PerNamespace SpendLimits `json:"perNamespace,omitzero"`
	// Soft is the percentage of a limit above which the user gets a notice. Zero means no notice.
	Soft int `json:"soft,omitempty"`
}

// SpendLimits limit the costs per UTC day and per calendar month. Zero means no limit.
type SpendLimits struct {
	Day   Dollars `json:"day,omitzero"`
	Month Dollars `json:"month,omitzero"`
}

// ParseLimits parses limits in US dollars. Nil means no limit.
func ParseLimits(day, month *string) (limits SpendLimits, err error) {
	for _, of := range []struct {
		text *string
		into *Dollars
	}{{day, &limits.Day}, {month, &limits.Month}} {
		if of.text == nil {
			continue
		}
		if *of.into, err = ParseDollars(*of.text); err == nil && *of.into == 0 {
			err = errors.New("a spending limit must be more than 0")
		}
		if err != nil {
			return SpendLimits{}, err
		}
	}
	return limits, nil
}

// Lowest returns the lowest limit, or zero if there is none.
func (c *SpendClaims) Lowest() (lowest Dollars) {
	if c == nil {
		return 0
	}
	for _, limit := range []Dollars{c.PerUser.Day, c.PerUser.Month, c.PerNamespace.Day, c.PerNamespace.Month} {
		if limit > 0 && (lowest == 0 || limit < lowest) {
			lowest = limit
		}
	}
	return lowest
}

// ReadSpendClaims returns the SpendClaims in a session's own tokens, or nil. It does not verify the
// signature: the archive does.
func ReadSpendClaims(tokens string) *SpendClaims {
	for token := range strings.FieldsSeq(tokens) {
		body, _, _ := strings.Cut(token, ".")
		payload, err := base64.RawURLEncoding.DecodeString(body)
		var claims Claims
		if err == nil && json.Unmarshal(payload, &claims) == nil && claims.Audience == AudienceArchive {
			return claims.Spend
		}
	}
	return nil
}

// SpendReport is a session's report of its costs, with a request for a reservation.
type SpendReport struct {
	// Run identifies the process, which can restart within an attempt. A later process has a higher
	// Run. Sequence counts the reports of the process, from 1.
	Run      int64 `json:"run"`
	Sequence int64 `json:"sequence"`
	// Spent contains the cumulative costs of this process, one line for each day and model. It
	// contains all lines for the days in Open. It contains a line for another day only until the
	// archive has acknowledged the costs in that line.
	Spent []SpentLine `json:"spent,omitempty"`
	// Open maps a day to the highest possible cost of the open calls with a grant of that day. A call
	// is open if it is in flight, or if it may be sent before the archive answers the report. A day
	// without open calls has the value zero if the session may hold a reservation for that day.
	Open map[string]Dollars `json:"open,omitempty"`
	// Need is the highest possible cost of the calls in flight and the next calls together. It does
	// not include Spent. Want is the reservation that the session would like to have. It is at
	// least Need.
	Need Dollars `json:"need,omitzero"`
	Want Dollars `json:"want,omitzero"`
	// Final is set in the last report of a process. At that time, no calls are in flight.
	Final bool `json:"final,omitempty"`
}

// SpentLine is the usage of one model on one day.
type SpentLine struct {
	// Period is the day of the grants with which the calls were sent.
	Period string `json:"period"`
	Model  string `json:"model"`
	Calls  int64  `json:"calls,omitempty"`
	// Input includes tokens that were read from or written to a cache.
	Input  int64   `json:"input,omitempty"`
	Output int64   `json:"output,omitempty"`
	Cost   Dollars `json:"cost,omitzero"`
}

// SpendGrant is the archive's answer to a SpendReport.
type SpendGrant struct {
	Sequence int64 `json:"sequence"`
	// Day is the UTC day of the archive. The costs of calls that are sent with this grant are
	// added to the costs of this day.
	Day string `json:"day"`
	// Reserved is the amount that the session may spend beyond the reported costs. If Refusal is
	// set, Reserved is less than SpendReport.Need.
	Reserved Dollars     `json:"reserved"`
	Refusal  *LimitState `json:"refusal,omitempty"`
	// Notice is set when a limit's soft threshold is exceeded for the first time in a period.
	Notice *LimitState `json:"notice,omitempty"`
}

// Values of LimitState.Scope and LimitState.Period.
const (
	ScopeUser      = "user"
	ScopeNamespace = "namespace"
	PeriodDay      = "day"
	PeriodMonth    = "month"
)

// LimitState describes a limit that is reached, or whose soft threshold is exceeded.
type LimitState struct {
	Scope  string  `json:"scope"`
	Period string  `json:"period"`
	Limit  Dollars `json:"limit"`
	// Spent includes the reservations of other sessions.
	Spent  Dollars   `json:"spent"`
	Resets time.Time `json:"resets"`
}

// NewLimitState returns the state of a limit at the time now. The period is PeriodDay or
// PeriodMonth.
func NewLimitState(scope, period string, limit, spent Dollars, now time.Time) *LimitState {
	now = now.UTC()
	resets := time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
	if period == PeriodDay {
		resets = time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, time.UTC)
	}
	return &LimitState{Scope: scope, Period: period, Limit: limit, Spent: spent, Resets: resets}
}

// Refusal is the message for a user whose call is refused.
func (l LimitState) Refusal() string {
	return fmt.Sprintf("spending limit of %s per %s for this %s is reached: %s spent or reserved; resets %s",
		l.Limit.Cents(), l.Period, l.Scope, l.Spent.Cents(), l.Resets.UTC().Format(time.RFC3339))
}

// Notice is the message for a user who is near a limit.
func (l LimitState) Notice() string {
	return fmt.Sprintf("spending limit of %s per %s for this %s: %s spent or reserved; resets %s",
		l.Limit.Cents(), l.Period, l.Scope, l.Spent.Cents(), l.Resets.UTC().Format(time.RFC3339))
}

// UsageSubject is the subject of tokens for AudienceUsage. Such a token does not belong to a single
// conversation.
const UsageSubject = "facade"

// ArchiveUsage is the path of the archive's SpendUsage. The query parameters are UsageMonth, and
// UsageOwner or UsageNamespace or both.
const ArchiveUsage = "/v1/usage"

// Query parameters of ArchiveUsage.
const (
	UsageOwner     = "owner"
	UsageNamespace = "namespace"
	// UsageMonth has the form of MonthForm. The default is the current month.
	UsageMonth = "month"
)

// SpendUsage contains the costs of one month: of an owner, of a namespace, or of an owner in a
// namespace.
type SpendUsage struct {
	Month string `json:"month"`
	// Day is the current UTC day of the archive. UsedToday are the costs and reservations of Day;
	// zero if Day is not in Month.
	Day       string      `json:"day,omitempty"`
	UsedToday Dollars     `json:"usedToday,omitzero"`
	Lines     []UsageLine `json:"lines"`
	// Owners contains the totals of each owner in a namespace. It is missing if the query names an
	// owner.
	Owners []OwnerUsage `json:"owners,omitempty"`
	UsageTotals
}

// UsageTotals are the totals of a month.
type UsageTotals struct {
	// Spent is the sum of the lines' costs. It includes Unsettled: the highest possible costs of
	// calls that were in flight when their session was killed.
	Spent     Dollars `json:"spent"`
	Unsettled Dollars `json:"unsettled,omitzero"`
	// Reserved is the amount that sessions have reserved and not spent.
	Reserved Dollars `json:"reserved,omitzero"`
}

// OwnerUsage contains the totals of one owner.
type OwnerUsage struct {
	Owner string `json:"owner"`
	UsageTotals
}

// UnsettledModel is the value of Model in lines with unsettled costs, because the ledger does not
// know the models of these costs.
const UnsettledModel = "(unsettled)"

// UsageLine is the usage of one model in one namespace on one day.
type UsageLine struct {
	Namespace string `json:"namespace"`
	SpentLine
}
