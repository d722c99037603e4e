package modelproxy

import (
	"encoding/json"
	"math/big"
	"net/http"
	"regexp"
	"strings"
)

// tokens of a call, as the endpoint counts them. Input has none of the cached ones.
type tokens struct{ input, output, cacheRead, cacheWrite int64 }

// mostTokens of a call that are believed.
const mostTokens = 1 << 40

// meter reads the usage of an answer on its way.
type meter struct {
	wire   wire
	entry  *entry
	picker picker
	// events are read where the answer is a stream.
	events *eventReader
	// final: the answer has come to its end; told: the usage was told for the first time.
	final, told bool
}

func newMeter(wire wire, stream bool, entry *entry, headers http.Header) *meter {
	m := &meter{wire: wire, entry: entry}
	m.picker.picked = m.picked
	if stream {
		m.events = &eventReader{data: m.picker.read, end: m.endOfEvent}
	}
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
	if m.events != nil {
		m.events.read(text)
	} else {
		m.picker.read(text)
		m.final = m.picker.complete()
	}
	return m.final && !final || m.told && !told
}

func (m *meter) endOfEvent(beginning string) {
	if strings.HasPrefix(beginning, "[DONE]") {
		m.final = true
	}
	m.picker.reset()
}

func (m *meter) picked(path string, value []byte) {
	if path == "type" {
		switch strings.Trim(strings.TrimSpace(string(value)), `"`) {
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
	if err := json.Unmarshal(value, &told); err != nil && !isTypeError(err) || strings.TrimSpace(string(value)) == "null" {
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

// eventReader reads server-sent events as they come, and holds none of them.
type eventReader struct {
	data func([]byte)
	// end of an event, which began so.
	end       func(beginning string)
	line      []byte // the beginning of the line
	inData    bool
	notData   bool
	beginning []byte
	any       bool
}

const dataField = "data:"

func (r *eventReader) read(text []byte) {
	for len(text) > 0 {
		end := 0
		for end < len(text) && text[end] != '\n' {
			end++
		}
		r.part(text[:end])
		if end == len(text) {
			return
		}
		r.endOfLine()
		text = text[end+1:]
	}
}

// part of a line.
func (r *eventReader) part(text []byte) {
	if !r.inData && !r.notData {
		needed := min(len(dataField)-len(r.line), len(text))
		r.line = append(r.line, text[:needed]...)
		text = text[needed:]
		if len(r.line) < len(dataField) {
			return
		}
		r.inData = string(r.line) == dataField
		r.notData = !r.inData
	}
	if r.inData && len(text) > 0 {
		r.any = true
		if missing := 16 - len(r.beginning); missing > 0 {
			r.beginning = append(r.beginning, text[:min(missing, len(text))]...)
		}
		r.data(text)
	}
}

func (r *eventReader) endOfLine() {
	empty := !r.inData && !r.notData && strings.TrimSuffix(string(r.line), "\r") == ""
	r.line, r.inData, r.notData = r.line[:0], false, false
	if empty && r.any {
		r.end(strings.TrimSpace(string(r.beginning)))
		r.any, r.beginning = false, r.beginning[:0]
	}
}
