package modelproxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
)

type ask struct {
	body  []byte
	model string
	// streamed is set if the response will be a stream of events. usageAsked is set if the request
	// asks for the usage at the end of a chat completions stream.
	streamed, usageAsked bool
	options              map[string]json.RawMessage
	// unpriced is the request field that makes the call's cost unknown, or empty if there is none.
	unpriced string
	// fields contains the values of the request fields in countedFields.
	fields map[string]json.RawMessage
}

// readAsk reads a request body and masks secrets in it. mask may be nil.
func readAsk(from *incoming, call route, mask func(string) string) (*ask, *problem) {
	body, err := from.readAll()
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
	case tooLarge:
		return nil, &problem{http.StatusRequestEntityTooLarge, "request_too_large",
			fmt.Sprintf("the request is larger than %d MiB", largestRequest>>20)}
	case errors.Is(err, errMemoryLimit):
		return nil, &problem{http.StatusTooManyRequests, "rate_limit_error",
			"too many large requests wait for the model: retry later"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &problem{http.StatusRequestTimeout, "timeout_error", "the request was not received in time"}
	default:
		return nil, &problem{http.StatusBadRequest, "invalid_request_error", "the request could not be read"}
	}
	a := &ask{body: body}
	if call.counted {
		if err := a.read(body); err != nil {
			return nil, &problem{http.StatusBadRequest, "invalid_request_error", err.Error()}
		}
		switch {
		case call.wire == anthropic && hasCompaction.Match(a.fields[contextField]):
			a.unpriced = contextField
		case call.wire == responses && a.drawsImages():
			a.unpriced = toolsField
		}
	}
	a.model = cmp.Or(call.model, a.model)
	if mask != nil && (call.counted || json.Valid(body)) {
		a.body = redact(body, mask)
	}
	return a, nil
}

// countedFields are the request fields that affect the cost or the report of usage.
var countedFields = slices.Concat(slices.Collect(maps.Keys(usualValues)), addingFields, []string{"model", "stream",
	"stream_options", contextField, maxTokensField, maxCompletionField, maxOutputField, choicesField, predictionField,
	toolsField, googleConfig, googleConfigSnake})

// usualValues lists, for some request fields, the values with which the call's cost can be known.
// With other values, the response reports no usage, or the call has another price.
var usualValues = map[string][]string{
	"background":    {"false"},
	"service_tier":  {`"auto"`, `"default"`, `"flex"`, `"standard"`, `"standard_only"`},
	"serviceTier":   {`"standard"`, `"flex"`},
	"speed":         {`"standard"`},
	"inference_geo": {`"global"`},
	"models":        {"[]"}, // gateways choose one of these models
	"fallbacks":     {"[]"},
	"preset":        {},
	"extra_body":    {"{}"}, // gateways prefer its fields to the fields that the proxy reads
	"base_model":    {},     // LiteLLM reports the cost of this model
}

// contextField is a request field that can ask Anthropic to summarize the conversation first. The
// usage in the response does not include the tokens of that summary.
const contextField = "context_management"

// hasCompaction matches a value of contextField that requests a summary. It also matches every
// backslash, because a request may escape the letters of "compact".
var hasCompaction = regexp.MustCompile(`compact|\\`)

// ownPrice occurs in the names of request fields that override LiteLLM's prices, such as
// input_cost_per_token. With such a field, LiteLLM reports another cost.
const ownPrice = "cost_per_"

var errInvalidRequest = errors.New("the request is not valid JSON or does not belong to this API")

// read parses the request. It refuses a request that repeats one of the countedFields, or spells it
// in another letter case, because the endpoint might use another value than the proxy.
func (a *ask) read(body []byte) error {
	fields, err := fieldsOf(body)
	if err != nil {
		return err
	}
	a.fields = fields
	for name, into := range map[string]any{"model": &a.model, "stream": &a.streamed, "stream_options": &a.options} {
		if value := fields[name]; value != nil && json.Unmarshal(value, into) != nil {
			return errInvalidRequest
		}
	}
	for name, usual := range usualValues {
		value := string(bytes.TrimSpace(fields[name]))
		if value != "" && value != "null" && !slices.Contains(usual, value) {
			a.unpriced = name
		}
	}
	for name := range fields {
		if strings.Contains(name, ownPrice) {
			a.unpriced = name
		}
	}
	if value := a.options["include_usage"]; value != nil && json.Unmarshal(value, &a.usageAsked) != nil {
		return errInvalidRequest
	}
	return nil
}

// withUsage returns a copy of the body that also asks for the usage at the end of the stream.
func (a *ask) withUsage() []byte {
	options := map[string]json.RawMessage{}
	maps.Copy(options, a.options)
	options["include_usage"] = json.RawMessage("true")
	return a.with("stream_options", options)
}

// ask.with returns a copy of the body in which the named field has this value. It ignores errors,
// because ask.read has already parsed the body.
func (a *ask) with(name string, value any) []byte {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(a.body, &fields)
	fields[name], _ = json.Marshal(value)
	var out bytes.Buffer
	out.Grow(len(a.body) + len(fields[name]) + 32)
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(fields)
	return out.Bytes()
}

func fieldsOf(body []byte) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return nil, errInvalidRequest
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, errInvalidRequest
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil, errInvalidRequest
		}
		if strings.Contains(name.(string), ownPrice) {
			fields[name.(string)] = value
		}
		for _, counted := range countedFields {
			if !strings.EqualFold(name.(string), counted) {
				continue
			}
			if fields[counted] != nil || name != counted {
				return nil, fmt.Errorf("the field %s may occur only once, and only in this spelling", counted)
			}
			fields[counted] = value
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errInvalidRequest
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errInvalidRequest
	}
	return fields, nil
}

var errMemoryLimit = errors.New("the memory for requests is full")

// incoming is a request body. If the requests in memory have reached their limit, a read fails
// immediately. It does not wait for free memory: the agent could disconnect during such a wait, and
// the server notices this only after it has read the whole body.
type incoming struct {
	body     io.Reader
	control  *http.ResponseController
	patience time.Duration
	room     *semaphore.Weighted
	held     int64
}

func (i *incoming) Read(text []byte) (int, error) {
	// Ignore the error: a response writer without a network connection does not support deadlines.
	_ = i.control.SetReadDeadline(time.Now().Add(i.patience))
	n, err := i.body.Read(text)
	if !i.room.TryAcquire(int64(n)) {
		return 0, errMemoryLimit
	}
	i.held += int64(n)
	return n, err
}

// readAll reads the body, and then removes the read deadline. After an error, it does not remove
// the deadline: the server still reads the rest of the body before it closes the connection, and
// that read must not block.
func (i *incoming) readAll() ([]byte, error) {
	body, err := io.ReadAll(i)
	if err == nil {
		_ = i.control.SetReadDeadline(time.Time{})
	}
	return body, err
}

func (i *incoming) release() { i.room.Release(i.held) }
