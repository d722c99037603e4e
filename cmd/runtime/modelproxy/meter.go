package modelproxy

import (
	"bytes"
	"encoding/json"
	"math/big"
	"net/http"
	"regexp"
	"strings"
)

// tokens of a call, as the endpoint counts them. Input has none of the cached ones.
type tokens struct{ input, output, cacheRead, cacheWrite int64 }

const (
	// mostTokens of a call that are believed.
	mostTokens = 1 << 40
	// lineStart is how much of a line of an event is held: "data: [DONE]" with its end.
	lineStart = 16
	dataField = "data:"
)

// meter reads the usage of an answer on its way. It holds little of an answer of any length.
type meter struct {
	wire   wire
	entry  *entry
	picker picker
	// stream: the answer is a stream of events; line is the start of the line under way.
	stream bool
	line   []byte
	// final: the answer has come to its end; told: the usage was told for the first time.
	final, told bool
}

func newMeter(wire wire, stream bool, entry *entry, headers http.Header) *meter {
	m := &meter{wire: wire, entry: entry, stream: stream}
	m.picker.picked = m.picked
	// LiteLLM says what a call costs, and zero where it does not know yet.
	if cost := parseCost(headers.Get("X-Litellm-Response-Cost")); cost != nil && cost.Sign() > 0 {
		entry.reported = cost
	}
	return m
}

// read a part of the answer. It says whether what was used is to be recorded: when it is first
// told, and at the end.
func (m *meter) read(text []byte) (record bool) {
	final, told := m.final, m.told
	if m.stream {
		m.readEvents(text)
	} else {
		m.picker.read(text)
		m.final = m.picker.complete
	}
	return m.final && !final || m.told && !told
}

// readEvents passes the data of events to the picker.
func (m *meter) readEvents(text []byte) {
	for part := range bytes.Lines(text) {
		held := len(m.line)
		m.line = append(m.line, part[:min(len(part), lineStart-held)]...)
		if bytes.HasPrefix(m.line, []byte(dataField)) {
			m.picker.read(part[max(0, len(dataField)-held):])
		}
		if !bytes.HasSuffix(part, []byte("\n")) {
			return // the line goes on in the next part
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

// picked counts the usage that the endpoint tells, and notes the last event of a stream.
func (m *meter) picked(path string, value []byte) {
	value = bytes.TrimSpace(value)
	if path == "type" {
		switch strings.Trim(string(value), `"`) {
		case "message_stop", "response.completed", "response.incomplete", "response.failed":
			m.final = true
		}
		return
	}
	var told struct {
		InputTokens      int64 `json:"input_tokens"`
		OutputTokens     int64 `json:"output_tokens"`
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
		TotalTokens      int64 `json:"total_tokens"`
		CacheRead        int64 `json:"cache_read_input_tokens"`
		CacheWrite       int64 `json:"cache_creation_input_tokens"`
		CacheHit         int64 `json:"prompt_cache_hit_tokens"`
		PromptDetails    struct {
			Cached int64 `json:"cached_tokens"`
			Write  int64 `json:"cache_write_tokens"`
		} `json:"prompt_tokens_details"`
		InputDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		Cost json.RawMessage `json:"cost"`
		googleUsage
	}
	// A field of another type than it should be is passed by; the others are read all the same.
	if err := json.Unmarshal(value, &told); err != nil && !isTypeError(err) || string(value) == "null" {
		return
	}
	var t tokens
	switch m.wire {
	case anthropic:
		t = tokens{told.InputTokens, told.OutputTokens, told.CacheRead, told.CacheWrite}
	case chat:
		t.cacheRead = max(told.PromptDetails.Cached, told.CacheHit, told.CacheRead)
		t.cacheWrite = max(told.PromptDetails.Write, told.CacheWrite)
		t.input = told.PromptTokens - t.cacheRead - t.cacheWrite
		// Some leave what the model thought out of the completion, and have it in the total.
		t.output = max(told.CompletionTokens, told.TotalTokens-told.PromptTokens)
	case google:
		t = told.tokens()
	default:
		t = tokens{told.InputTokens - told.InputDetails.Cached, told.OutputTokens, told.InputDetails.Cached, 0}
	}
	m.entry.add(t, parseCost(strings.Trim(string(told.Cost), `"`)))
	m.told = true
}

func isTypeError(err error) bool {
	_, ok := err.(*json.UnmarshalTypeError) //nolint:errorlint // it is returned as it is
	return ok
}

// costForm bounds the digits of a cost, and so what reckoning with it takes.
var costForm = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?$`)

// parseCost is a decimal number; nil where it is none.
func parseCost(text string) *big.Rat {
	if !costForm.MatchString(text) {
		return nil
	}
	cost, ok := new(big.Rat).SetString(text)
	if !ok || cost.Cmp(big.NewRat(mostTokens, 1)) > 0 {
		return nil
	}
	return cost
}
