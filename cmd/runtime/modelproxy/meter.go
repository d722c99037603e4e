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
	// largestLooked is how much of an answer, or of an event of one, is held to look for the usage.
	// Images may be in it.
	largestLooked = 16 << 20
	// largestUsage bounds what tells the usage.
	largestUsage = 16 << 10
)

// meter reads the usage of an answer on its way.
type meter struct {
	wire  wire
	entry *entry
	// events are read where the answer is a stream; else whole is what came of it.
	events *splitter
	whole  []byte
	// final: the answer has come to its end; told: the usage was told for the first time.
	final, told bool
}

func newMeter(wire wire, stream bool, entry *entry, headers http.Header) *meter {
	m := &meter{wire: wire, entry: entry}
	if stream {
		m.events = &splitter{limit: largestLooked, take: m.event}
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
		_, _ = m.events.Write(text) // it takes everything
	} else if len(m.whole)+len(text) <= largestLooked {
		m.whole = append(m.whole, text...)
		if bytes.HasSuffix(bytes.TrimSpace(text), []byte("}")) && json.Valid(m.whole) {
			m.final = true
			m.look(m.whole)
		}
	}
	return m.final && !final || m.told && !told
}

// end of the answer: an event may lack the empty line that ends it.
func (m *meter) end() {
	if m.events != nil {
		_ = m.events.Close()
	}
}

func (m *meter) event(event []byte, whole bool) error {
	var data []byte
	for line := range bytes.Lines(event) {
		if part, ok := bytes.CutPrefix(line, []byte("data:")); ok && whole {
			data = append(data, part...)
		}
	}
	if data = bytes.TrimSpace(data); bytes.HasPrefix(data, []byte("[DONE]")) {
		m.final = true
	} else if len(data) > 0 {
		m.look(data)
	}
	return nil
}

// look for the usage in an answer, or in an event of one.
func (m *meter) look(text []byte) {
	type usage struct {
		Usage json.RawMessage `json:"usage"`
	}
	var said struct {
		usage
		Google   json.RawMessage `json:"usageMetadata"`
		Message  json.RawMessage `json:"message"`
		Response json.RawMessage `json:"response"`
		Type     string          `json:"type"`
	}
	if err := json.Unmarshal(text, &said); err != nil && !isTypeError(err) {
		return
	}
	switch said.Type {
	case "message_stop", "response.completed", "response.incomplete", "response.failed":
		m.final = true
	}
	var message, response usage
	_, _ = json.Unmarshal(said.Message, &message), json.Unmarshal(said.Response, &response) // texts have none
	for _, value := range []json.RawMessage{said.Usage, said.Google, message.Usage, response.Usage} {
		if len(value) > 0 && len(value) <= largestUsage {
			m.count(value)
		}
	}
}

// count what the endpoint tells of its usage.
func (m *meter) count(value json.RawMessage) {
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
