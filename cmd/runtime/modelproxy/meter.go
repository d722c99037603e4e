package modelproxy

import (
	"bytes"
	"encoding/json"
	"math/big"
	"net/http"
	"regexp"
	"strings"
)

// tokens are a call's token counts, as the endpoint reports them. input does not include cached
// tokens. hourWrite is the part of cacheWrite that is stored for an hour.
type tokens struct{ input, output, cacheRead, cacheWrite, hourWrite int64 }

const (
	// maxTokens is the largest plausible token count.
	maxTokens = 1 << 40
	// lineStart is how many bytes of an event line are kept. That is enough for "data: [DONE]".
	lineStart = 16
	dataField = "data:"
)

// meter reads the usage from a response while the response is forwarded. It never holds a whole
// response in memory.
type meter struct {
	wire   wire
	entry  *entry
	picker picker
	// stream is set if the response is a stream of events. line is the start of the current line.
	stream bool
	line   []byte
	// final is set at the end of the response. found is set when usage was found. brokeOff is set
	// if a stream ended with an error after at least one event.
	final, found, brokeOff bool
	events                 int
}

func newMeter(wire wire, stream bool, entry *entry, headers http.Header) *meter {
	m := &meter{wire: wire, entry: entry, stream: stream}
	m.picker.picked = m.picked
	// LiteLLM reports the cost of a call in this header. The cost is zero if it is not known yet.
	if cost := parseCost(headers.Get("X-Litellm-Response-Cost")); cost != nil && cost.Sign() > 0 {
		entry.reported = cost
	}
	return m
}

// read reads a part of the response. record is true when usage is found for the first time, and at
// the end of the response.
func (m *meter) read(text []byte) (record bool) {
	final, found := m.final, m.found
	if m.stream {
		m.readEvents(text)
	} else {
		m.picker.read(text)
		m.final = m.picker.complete
	}
	return m.final && !final || m.found && !found
}

func (m *meter) readEvents(text []byte) {
	for part := range bytes.Lines(text) {
		held := len(m.line)
		m.line = append(m.line, part[:min(len(part), lineStart-held)]...)
		if bytes.HasPrefix(m.line, []byte(dataField)) {
			m.picker.read(part[max(0, len(dataField)-held):])
		}
		if !bytes.HasSuffix(part, []byte("\n")) {
			return // the line continues in the next part
		}
		if bytes.HasPrefix(m.line, []byte(dataField)) {
			m.events++
		}
		switch string(bytes.TrimSpace(m.line)) {
		case "": // the end of an event
			m.picker.reset()
		case "data: [DONE]", "data:[DONE]":
			m.final = true
		}
		m.line = m.line[:0]
	}
}

// picked adds reported usage to the entry, and detects errors and the end of a stream.
func (m *meter) picked(path string, value []byte) {
	value = bytes.TrimSpace(value)
	if path == "error" { // a failed response with status 200
		if string(value) != "null" {
			m.entry.failed = true
			m.entry.mayCost = m.entry.hasUsage
			m.brokeOff = m.events > 0
		}
		return
	}
	if path == "type" {
		switch strings.Trim(string(value), `"`) {
		case "message_stop", "response.completed", "response.incomplete", "response.failed":
			m.final = true
		}
		return
	}
	var usage struct {
		InputTokens      int64 `json:"input_tokens"`
		OutputTokens     int64 `json:"output_tokens"`
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
		TotalTokens      int64 `json:"total_tokens"`
		CacheRead        int64 `json:"cache_read_input_tokens"`
		CacheWrite       int64 `json:"cache_creation_input_tokens"`
		CacheCreation    struct {
			Hour int64 `json:"ephemeral_1h_input_tokens"`
		} `json:"cache_creation"`
		CacheHit      int64 `json:"prompt_cache_hit_tokens"`
		PromptDetails struct {
			Cached int64 `json:"cached_tokens"`
			Write  int64 `json:"cache_write_tokens"`
		} `json:"prompt_tokens_details"`
		InputDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		Cost json.RawMessage `json:"cost"`
		googleUsage
	}
	// A field of the wrong type is ignored, and the other fields are used.
	if err := json.Unmarshal(value, &usage); err != nil && !isTypeError(err) || string(value) == "null" {
		return
	}
	var t tokens
	switch m.wire {
	case anthropic:
		t = tokens{usage.InputTokens, usage.OutputTokens, usage.CacheRead, usage.CacheWrite, usage.CacheCreation.Hour}
	case chat:
		t.cacheRead = max(usage.PromptDetails.Cached, usage.CacheHit, usage.CacheRead)
		t.cacheWrite = max(usage.PromptDetails.Write, usage.CacheWrite)
		t.input = usage.PromptTokens - t.cacheRead - t.cacheWrite
		// Some endpoints include reasoning tokens only in the total.
		t.output = max(usage.CompletionTokens, usage.TotalTokens-usage.PromptTokens)
	case google:
		t = usage.tokens()
	default:
		t = tokens{usage.InputTokens - usage.InputDetails.Cached, usage.OutputTokens, usage.InputDetails.Cached, 0, 0}
	}
	m.entry.add(t, parseCost(strings.Trim(string(usage.Cost), `"`)))
	m.found = true
}

func isTypeError(err error) bool {
	_, ok := err.(*json.UnmarshalTypeError) //nolint:errorlint // it is returned as it is
	return ok
}

// costForm matches decimal numbers. It limits the number of digits, because arithmetic with very
// long numbers is slow.
var costForm = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?$`)

func parseCost(text string) *big.Rat {
	if !costForm.MatchString(text) {
		return nil
	}
	cost, ok := new(big.Rat).SetString(text)
	if !ok || cost.Cmp(big.NewRat(maxTokens, 1)) > 0 {
		return nil
	}
	return cost
}
