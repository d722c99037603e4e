package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// maxItems limits the decoded entries of a list or an object. The CRD schema allows fewer.
const maxItems = 1000

// decoder collects the errors of a request, at most MaxDetails. Their types and messages are the
// same as in OpenHands.
type decoder struct{ details []Detail }

func (d *decoder) fail(loc Location, kind, msg string) {
	if len(d.details) < MaxDetails {
		d.details = append(d.details, Detail{Type: kind, Loc: loc, Msg: msg})
	}
}

type object struct {
	*decoder
	loc    Location
	fields map[string]json.RawMessage
	taken  map[string]bool
}

func decodeBody[T any](body []byte, read func(*object) T) (value T, details []Detail) {
	d, loc := &decoder{}, Location{"body"}
	if len(bytes.TrimSpace(body)) == 0 {
		return value, []Detail{{"missing", loc, "Field required"}}
	}
	var fields map[string]json.RawMessage
	var syntax *json.SyntaxError
	if err := json.Unmarshal(body, &fields); errors.As(err, &syntax) {
		return value, []Detail{{"json_invalid", loc.At(syntax.Offset), "JSON decode error"}}
	} else if err != nil || fields == nil {
		return value, []Detail{{"model_attributes_type", loc, "Input should be a valid dictionary or object to extract " +
			"fields from"}}
	}
	value = read(&object{decoder: d, loc: loc, fields: fields, taken: map[string]bool{}})
	return value, d.details
}

// object decodes a JSON object. It returns nil for any other value.
func (d *decoder) object(loc Location, raw json.RawMessage) *object {
	var fields map[string]json.RawMessage
	if raw[0] != '{' || json.Unmarshal(raw, &fields) != nil {
		d.fail(loc, "dict_type", "Input should be a valid dictionary")
		return nil
	}
	if len(fields) > maxItems {
		d.fail(loc, "too_long", "Dictionary should have at most "+strconv.Itoa(maxItems)+" items")
		return nil
	}
	return &object{decoder: d, loc: loc, fields: fields, taken: map[string]bool{}}
}

// take marks a field as taken and returns its value: nil if the field is null or left out.
func (o *object) take(name string) (raw json.RawMessage, present bool) {
	o.taken[name] = true
	raw, present = o.fields[name]
	if isNull(raw) {
		return nil, present
	}
	return raw, present
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || raw[0] == 'n' }

// forbidOthers adds an error for each field for which take() was not called.
func (o *object) forbidOthers() {
	for _, name := range sortedKeys(o.fields) {
		if !o.taken[name] {
			o.fail(o.loc.Named(name), "extra_forbidden", "Extra inputs are not permitted")
		}
	}
}

type parser[T any] func(*decoder, Location, json.RawMessage) (T, bool)

func optional[T any](o *object, name string, parse parser[T]) *T {
	raw, _ := o.take(name)
	if raw == nil {
		return nil
	}
	if value, ok := parse(o.decoder, o.loc.At(name), raw); ok {
		return &value
	}
	return nil
}

func orZero[T any](value *T) (zero T) {
	if value == nil {
		return zero
	}
	return *value
}

// structure returns a parser for an object. The parser reads the known fields with readFields(). It
// refuses every field that readFields() does not read, because the field would have no effect.
func structure[T any](readFields func(*object) T) parser[T] {
	return func(d *decoder, loc Location, raw json.RawMessage) (value T, ok bool) {
		o := d.object(loc, raw)
		if o == nil {
			return value, false
		}
		value = readFields(o)
		o.forbidOthers()
		return value, true
	}
}

func required[T any](o *object, name string, parse parser[T]) (value T) {
	raw, present := o.take(name)
	switch {
	case !present:
		o.fail(o.loc.At(name), "missing", "Field required")
		return value
	case raw == nil:
		raw = json.RawMessage("null")
	}
	value, _ = parse(o.decoder, o.loc.At(name), raw)
	return value
}

func text(d *decoder, loc Location, raw json.RawMessage) (string, bool) {
	var s string
	if raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		d.fail(loc, "string_type", "Input should be a valid string")
		return "", false
	}
	return s, true
}

// textOrNothing reads "" as null: clients send "" for an input field that is empty.
func textOrNothing(o *object, name string) *string {
	value := optional(o, name, text)
	if value != nil && *value == "" {
		return nil
	}
	return value
}

// maxKey is the longest key that is stored, in bytes. A session gets each key in an environment
// variable, and Linux limits a variable, including its name, to 128 KiB.
const maxKey = 100 << 10

func keyText(d *decoder, loc Location, raw json.RawMessage) (string, bool) {
	value, ok := text(d, loc, raw)
	return value, ok && keyFits(d, loc, value)
}

func keyFits(d *decoder, loc Location, value string) bool {
	if len(value) > maxKey {
		d.fail(loc, "string_too_long", "String should have at most "+strconv.Itoa(maxKey)+" bytes")
		return false
	}
	if strings.ContainsRune(value, 0) {
		d.fail(loc, "value_error", "Value error, a key cannot hold a zero byte")
		return false
	}
	return true
}

var truths = map[string]bool{
	"1": true, "on": true, "t": true, "true": true, "y": true, "yes": true,
	"0": false, "off": false, "f": false, "false": false, "n": false, "no": false,
}

// Truth parses a word that means true or false, such as "on" or "no".
func Truth(word string) (value, known bool) {
	value, known = truths[strings.ToLower(word)]
	return value, known
}

func boolean(d *decoder, loc Location, raw json.RawMessage) (value, ok bool) {
	switch raw[0] {
	case 't', 'f':
		return raw[0] == 't', true
	case '"':
		var s string
		if json.Unmarshal(raw, &s) == nil {
			value, ok = Truth(s)
		}
	case '{', '[', 'n':
		d.fail(loc, "bool_type", "Input should be a valid boolean")
		return false, false
	default:
		number, err := strconv.ParseFloat(string(raw), 64)
		value, ok = number == 1, err == nil && (number == 0 || number == 1)
	}
	if !ok {
		d.fail(loc, "bool_parsing", "Input should be a valid boolean, unable to interpret input")
	}
	return value, ok
}

// integerText matches an integer in a string. Zeros after a decimal point are allowed.
var integerText = regexp.MustCompile(`^([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0*)?$`)

func integer(d *decoder, loc Location, raw json.RawMessage) (int64, bool) {
	switch raw[0] {
	case 't':
		return 1, true
	case 'f':
		return 0, true
	case '"':
		return integerFromText(d, loc, raw)
	case '{', '[', 'n':
		d.fail(loc, "int_type", "Input should be a valid integer")
		return 0, false
	}
	if value, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return value, true
	}
	number, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil || math.Abs(number) > math.MaxInt32:
		tooLarge(d, loc)
	case number != math.Trunc(number):
		d.fail(loc, "int_from_float", "Input should be a valid integer, got a number with a fractional part")
	default:
		return int64(number), true
	}
	return 0, false
}

func integerFromText(d *decoder, loc Location, raw json.RawMessage) (int64, bool) {
	var s string
	_ = json.Unmarshal(raw, &s) // the text was valid as part of the body
	match := integerText.FindStringSubmatch(strings.TrimSpace(s))
	if match == nil {
		d.fail(loc, "int_parsing", "Input should be a valid integer, unable to parse string as an integer")
		return 0, false
	}
	value, err := strconv.ParseInt(strings.ReplaceAll(match[1], "_", ""), 10, 64)
	if err != nil {
		tooLarge(d, loc)
	}
	return value, err == nil
}

func smallInteger(d *decoder, loc Location, raw json.RawMessage) (int32, bool) {
	value, ok := integer(d, loc, raw)
	if ok && (value > math.MaxInt32 || value < math.MinInt32) {
		tooLarge(d, loc)
		ok = false
	}
	return int32(value), ok
}

func tooLarge(d *decoder, loc Location) {
	d.fail(loc, "int_parsing_size", "Unable to parse input as an integer, exceeded maximum size")
}

// decimal returns a number as the CRDs store it: digits without an exponent.
func decimal(d *decoder, loc Location, raw json.RawMessage) (json.Number, bool) {
	digits := string(raw)
	switch raw[0] {
	case 't':
		digits = "1"
	case 'f':
		digits = "0"
	case '"':
		var s string
		_ = json.Unmarshal(raw, &s) // the text was valid as part of the body
		digits = strings.TrimSpace(s)
	case '{', '[', 'n':
		d.fail(loc, "float_type", "Input should be a valid number")
		return "", false
	}
	number, err := strconv.ParseFloat(digits, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		d.fail(loc, "float_parsing", "Input should be a valid number, unable to parse string as a number")
		return "", false
	case math.IsInf(number, 0) || math.IsNaN(number):
		d.fail(loc, "finite_number", "Input should be a finite number")
		return "", false
	}
	if number == 0 {
		number = 0 // turns -0 into 0
	}
	// Round to six decimals, because the CRDs allow no more. A computed number such as 0.1+0.2 has
	// more decimals than the client intended.
	digits = strings.TrimRight(strconv.FormatFloat(number, 'f', 6, 64), "0")
	return json.Number(strings.TrimSuffix(digits, ".")), true
}

// items refuses a list of more than maxItems entries, because an entry needs many times its JSON
// length in memory.
func items(d *decoder, loc Location, raw json.RawMessage) (items []json.RawMessage, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		d.fail(loc, "list_type", "Input should be a valid list")
		return nil, false
	}
	for decoder.More() {
		var item json.RawMessage
		if len(items) == maxItems || decoder.Decode(&item) != nil {
			d.fail(loc, "too_long", "List should have at most "+strconv.Itoa(maxItems)+" items")
			return nil, false
		}
		items = append(items, item)
	}
	return items, true
}

func list[T any](parse parser[T]) parser[[]T] {
	return func(d *decoder, loc Location, raw json.RawMessage) ([]T, bool) {
		items, ok := items(d, loc, raw)
		if !ok {
			return nil, false
		}
		values := make([]T, 0, len(items))
		for i, item := range items {
			value, _ := parse(d, loc.At(i), item)
			values = append(values, value)
		}
		return values, true
	}
}
