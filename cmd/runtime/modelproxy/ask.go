package modelproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

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
