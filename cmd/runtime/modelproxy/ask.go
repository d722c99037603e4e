package modelproxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
)

// ask is the body of a call.
type ask struct {
	body  []byte
	model string
	// streamed answers come in events. Those of chat completions tell the usage only if asked to:
	// usageAsked.
	streamed, usageAsked bool
	// options of the stream are in the request.
	options bool
}

func readAsk(from *incoming, call route) (*ask, *problem) {
	body, err := from.readAll()
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
	case tooLarge:
		return nil, &problem{http.StatusRequestEntityTooLarge, "request_too_large",
			fmt.Sprintf("the request is larger than %d MiB", largestRequest>>20)}
	case errors.Is(err, errNoRoom):
		return nil, &problem{http.StatusTooManyRequests, "rate_limit_error",
			"too many large requests wait for the model: send this one again later"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &problem{http.StatusRequestTimeout, "timeout_error", "the request did not come in time"}
	default:
		return nil, &problem{http.StatusBadRequest, "invalid_request_error", "the request could not be read"}
	}
	a := &ask{body: body}
	if !call.counted {
		return a, nil
	}
	if err := a.read(body); err != nil {
		return nil, &problem{http.StatusBadRequest, "invalid_request_error", err.Error()}
	}
	a.model = cmp.Or(call.model, a.model)
	return a, nil
}

// countedFields are the fields of a request that say what it costs, and where that is told.
var countedFields = []string{"model", "stream", "stream_options"}

var errNoAsk = errors.New("the request is not valid JSON, or not of this API")

// read what is asked for. The endpoint must not read something else: names are as they are written,
// and one that stands there twice, or in other letters, is refused, since readers differ in which
// they take.
func (a *ask) read(body []byte) error {
	fields, err := fieldsOf(body)
	if err != nil {
		return err
	}
	var options map[string]json.RawMessage
	for name, into := range map[string]any{"model": &a.model, "stream": &a.streamed, "stream_options": &options} {
		if value := fields[name]; value != nil && json.Unmarshal(value, into) != nil {
			return errNoAsk
		}
	}
	a.options = fields["stream_options"] != nil
	if value := options["include_usage"]; value != nil && json.Unmarshal(value, &a.usageAsked) != nil {
		return errNoAsk
	}
	return nil
}

// fieldsOf a request that count.
func fieldsOf(body []byte) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return nil, errNoAsk
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, errNoAsk
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil, errNoAsk
		}
		for _, counted := range countedFields {
			if !strings.EqualFold(name.(string), counted) {
				continue
			}
			if fields[counted] != nil || name != counted {
				return nil, fmt.Errorf("the request may have %s once, in these letters", counted)
			}
			fields[counted] = value
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errNoAsk
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errNoAsk
	}
	return fields, nil
}

var errNoRoom = errors.New("too much is held of requests")

// incoming is the body of a request as the agent sends it. It waits for no room: while a body is
// not read to its end, nobody is told that its agent has gone.
type incoming struct {
	body     io.Reader
	control  *http.ResponseController
	patience time.Duration
	room     *semaphore.Weighted
	held     int64
}

func (i *incoming) Read(text []byte) (int, error) {
	// What has no deadlines is no connection.
	_ = i.control.SetReadDeadline(time.Now().Add(i.patience))
	n, err := i.body.Read(text)
	if !i.room.TryAcquire(int64(n)) {
		return 0, errNoRoom
	}
	i.held += int64(n)
	return n, err
}

// readAll of the body. After an error the deadline stays: the server reads on before it closes the
// connection, and must not wait there either.
func (i *incoming) readAll() ([]byte, error) {
	body, err := io.ReadAll(i)
	if err == nil {
		_ = i.control.SetReadDeadline(time.Time{})
	}
	return body, err
}

// release the room that the body takes.
func (i *incoming) release() { i.room.Release(i.held) }
