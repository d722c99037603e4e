package rest

import "time"

// Usage contains the costs of a user's model calls in a month. Amounts are decimal numbers of US
// dollars.
type Usage struct {
	// Month is a month in UTC, such as 2026-01.
	Month string `json:"month"`
	// Spent includes Unsettled: the highest possible costs of calls that were in flight when their
	// session was killed.
	Spent     string `json:"spent"`
	Unsettled string `json:"unsettled"`
	// Reserved is the amount that running sessions have reserved and not spent.
	Reserved string `json:"reserved"`
	// Limits are the spending limits of new sessions. They are empty if the month is not the
	// current month.
	Limits []UsageLimit `json:"limits"`
	Lines  []UsageLine  `json:"lines"`
}

// UsageLimit is a spending limit for the current period.
type UsageLimit struct {
	// Scope is user or namespace. Period is day or month.
	Scope  string `json:"scope"`
	Period string `json:"period"`
	Limit  string `json:"limit"`
	// Used is the amount that the user has spent or reserved. It is null if the scope is a
	// namespace, because the amount would reveal the costs of other users.
	Used   *string   `json:"used"`
	Resets time.Time `json:"resets"`
}

// UsageLine is the usage of one model in one namespace on one day.
type UsageLine struct {
	Day       string `json:"day"`
	Namespace string `json:"namespace"`
	// Model is "(unsettled)" for unsettled costs.
	Model        string `json:"model"`
	Calls        int64  `json:"calls"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	Cost         string `json:"cost"`
}
