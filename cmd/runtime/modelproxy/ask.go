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
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
)

// ask is the parsed request body of a call.
type ask struct {
	body  []byte
	model string
	// streamed is set if the response is a stream of events. A stream of chat completions includes
	// the usage only if the request asks for it; usageAsked is set then.
	streamed, usageAsked bool
	// options are the stream_options of the request, if any.
	options map[string]json.RawMessage
	// unpriced is the name of a request field that makes the cost of the call unknown, or empty.
	unpriced string
}

// readAsk reads a request and masks secrets in it. mask may be nil.
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
	}
	a.model = cmp.Or(call.model, a.model)
	if mask != nil && (call.counted || json.Valid(body)) {
		a.body = redact(body, mask)
	}
	return a, nil
}

// countedFields are the request fields that determine the price and how the usage is reported.
var countedFields = []string{"model", "stream", "stream_options", "background", "service_tier", "models", "fallbacks"}

// usualValues are the values of request fields with which the cost of a call can be known. With other
// values, the response does not report its usage, or the call has another price.
var usualValues = map[string][]string{
	"background":   {"false"},
	"service_tier": {`"auto"`, `"default"`, `"flex"`, `"standard"`, `"standard_only"`},
	"models":       {"[]"}, // gateways choose one of these models
	"fallbacks":    {"[]"},
}

var errInvalidRequest = errors.New("the request is not valid JSON or does not belong to this API")

// read parses the request. The endpoint must not interpret the request differently. A field that
// occurs twice, or in another letter case, is therefore refused, because different parsers would
// use different values.
func (a *ask) read(body []byte) error {
	fields, err := fieldsOf(body)
	if err != nil {
		return err
	}
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
	if value := a.options["include_usage"]; value != nil && json.Unmarshal(value, &a.usageAsked) != nil {
		return errInvalidRequest
	}
	return nil
}

// withUsage returns the body with a request for the usage at the end of the stream. It ignores the
// errors of a body that read has parsed.
func (a *ask) withUsage() []byte {
	fields, options := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	_ = json.Unmarshal(a.body, &fields)
	maps.Copy(options, a.options)
	options["include_usage"] = json.RawMessage("true")
	fields["stream_options"], _ = json.Marshal(options)
	var out bytes.Buffer
	out.Grow(len(a.body) + len(fields["stream_options"]) + 32)
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(fields)
	return out.Bytes()
}

// fieldsOf returns the countedFields of a request.
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
		for _, counted := range countedFields {
			if !strings.EqualFold(name.(string), counted) {
				continue
			}
			if fields[counted] != nil || name != counted {
				return nil, fmt.Errorf("the field %s may occur only once and must be in lower case", counted)
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

var errMemoryLimit = errors.New("the requests in memory have reached their limit")

// incoming is the body of a request. If the requests in memory have reached their limit, reading
// fails at once. It does not wait, because the server cannot notice that the agent disconnected
// before the body is read.
type incoming struct {
	body     io.Reader
	control  *http.ResponseController
	patience time.Duration
	room     *semaphore.Weighted
	held     int64
}

func (i *incoming) Read(text []byte) (int, error) {
	// Only bodies of network connections support deadlines, so the error is ignored.
	_ = i.control.SetReadDeadline(time.Now().Add(i.patience))
	n, err := i.body.Read(text)
	if !i.room.TryAcquire(int64(n)) {
		return 0, errMemoryLimit
	}
	i.held += int64(n)
	return n, err
}

// readAll reads the body. After an error the deadline stays, because the server reads the rest of
// the body before it closes the connection, and that read must not block either.
func (i *incoming) readAll() ([]byte, error) {
	body, err := io.ReadAll(i)
	if err == nil {
		_ = i.control.SetReadDeadline(time.Time{})
	}
	return body, err
}

// release frees the memory of the body.
func (i *incoming) release() { i.room.Release(i.held) }
