package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parley-dev/parley/api/rest"
)

// documentedResponse is the entry of a status code in openapi.yaml.
type documentedResponse struct {
	Ref     string `json:"$ref"`
	Headers map[string]struct {
		Ref string `json:"$ref"`
	}
	Content map[string]struct{ Schema json.RawMessage }
}

// documentedOperation is the entry of a path and a method in openapi.yaml. It is a handler, so that
// a ServeMux can find the entry for a request. The handler is never called.
type documentedOperation struct {
	http.Handler `json:"-"`
	Responses    map[string]documentedResponse
}

// contract is openapi.yaml. Every response is checked against it.
type contract struct {
	Paths      map[string]map[string]json.RawMessage
	Components struct {
		Schemas   json.RawMessage
		Responses map[string]documentedResponse
		Headers   map[string]struct {
			Required bool
			Schema   json.RawMessage
		}
	}

	routes *http.ServeMux
	// mu guards compiled, which caches the compiled schemas by their text.
	mu       sync.Mutex
	compiled map[string]*jsonschema.Resolved
}

const (
	schemaPrefix = `"#/components/schemas/`
	dateFormat   = `"format":"date-time"`
	datePattern  = dateFormat + `,"pattern":"^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)$"`
)

var loadContract = sync.OnceValues(func() (*contract, error) {
	// compile() puts all schemas into the $defs of each schema that it compiles, so
	// references must point there. The library does not check formats, so each date gets a pattern.
	text := strings.NewReplacer(schemaPrefix, `"#/$defs/`, dateFormat, datePattern).Replace(string(rest.OpenAPI))
	d := &contract{routes: http.NewServeMux(), compiled: map[string]*jsonschema.Resolved{}}
	if err := json.Unmarshal([]byte(text), d); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	for path, methods := range d.Paths {
		for method, text := range methods {
			if method == "parameters" {
				continue
			}
			o := &documentedOperation{Handler: http.NotFoundHandler()}
			if err := json.Unmarshal(text, o); err != nil {
				return nil, fmt.Errorf("openapi.yaml: %s %s: %w", method, path, err)
			}
			d.routes.Handle(strings.ToUpper(method)+" "+path, o)
		}
	}
	return d, nil
})

// checkContract returns an error unless openapi.yaml documents this response to the request. For an
// undocumented path or method, the status must be 404, 405 or, for a CORS preflight, 204.
func checkContract(request *http.Request, code int, header http.Header, body string) error {
	d, err := loadContract()
	if err != nil {
		return err
	}
	found, _ := d.routes.Handler(request)
	o, documented := found.(*documentedOperation)
	if !documented {
		if code == http.StatusNotFound || code == http.StatusMethodNotAllowed || code == http.StatusNoContent {
			return nil
		}
		return errors.New("no such operation is documented")
	}
	r, documented := o.Responses[strconv.Itoa(code)]
	if !documented {
		return errors.New("no such status is documented")
	}
	if name, isRef := strings.CutPrefix(r.Ref, "#/components/responses/"); isRef {
		r = d.Components.Responses[name]
	}
	for name, reference := range r.Headers {
		documented := d.Components.Headers[strings.TrimPrefix(reference.Ref, "#/components/headers/")]
		value := header.Get(name)
		if value == "" && !documented.Required {
			continue
		}
		if err := d.validate(documented.Schema, value); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	if len(r.Content) == 0 {
		return nil
	}
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("Content-Type: %w", err)
	}
	content, documented := r.Content[media]
	switch {
	case !documented:
		return fmt.Errorf("no content of type %s is documented", media)
	case media != "application/json" || content.Schema == nil:
		return nil
	}
	return d.validate(content.Schema, body)
}

func (d *contract) validate(schema json.RawMessage, text string) error {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return err
	}
	compiled, err := d.compile(schema)
	if err != nil {
		return fmt.Errorf("schema %s: %w", schema, err)
	}
	return compiled.Validate(value)
}

func (d *contract) compile(schema json.RawMessage) (*jsonschema.Resolved, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if compiled := d.compiled[string(schema)]; compiled != nil {
		return compiled, nil
	}
	root := &jsonschema.Schema{}
	text := fmt.Appendf(nil, `{"$defs": %s, "allOf": [%s]}`, d.Components.Schemas, schema)
	if err := json.Unmarshal(text, root); err != nil {
		return nil, err
	}
	compiled, err := root.Resolve(nil)
	if err == nil {
		d.compiled[string(schema)] = compiled
	}
	return compiled, err
}

func TestResponsesAreCheckedAgainstTheContract(t *testing.T) {
	conversation := `{"conversation_id": "c", "status": "ok", "conversation_status": "STARTING", "message": null}`
	for name, test := range map[string]struct {
		method, path string
		code         int
		header, body string
		want         string // empty if the response is documented
	}{
		"a documented answer":     {"GET", "/alive", 200, "application/json", `{"status": "ok"}`, ""},
		"a body of invalid JSON":  {"GET", "/alive", 200, "application/json", `{`, "unexpected end"},
		"an unknown field":        {"GET", "/alive", 200, "application/json", `{"status": "ok", "more": 1}`, "more"},
		"a field of another type": {"GET", "/alive", 200, "application/json", `{"status": 1}`, "type"},
		"a missing field":         {"GET", "/alive", 200, "application/json", `{}`, "required"},
		"an undocumented type":    {"GET", "/alive", 200, "text/html", `{"status": "ok"}`, "no content of type"},
		"no content type":         {"GET", "/alive", 200, "", `{"status": "ok"}`, "Content-Type"},
		"an undocumented status":  {"GET", "/alive", 418, "application/json", `{"status": "ok"}`, "no such status"},
		"an undocumented path":    {"GET", "/nothing", 200, "application/json", `{}`, "no such operation"},
		"an unknown path":         {"GET", "/nothing", 404, "text/plain", "", ""},
		"an unknown method":       {"PUT", "/alive", 405, "text/plain", "", ""},
		"an undocumented method":  {"PUT", "/alive", 200, "application/json", `{}`, "no such operation"},
		"an answer by reference":  {"POST", "/api/conversations", 200, "application/json", conversation, ""},
		"a referenced type is kept": {"POST", "/api/conversations", 200, "application/json", `{"conversation_id": 1}`,
			"type"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkContract(httptest.NewRequest(test.method, test.path, nil), test.code,
				http.Header{"Content-Type": {test.header}}, test.body)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestHeadersAreCheckedAgainstTheContract(t *testing.T) {
	for value, valid := range map[string]bool{"": true, "1": true, "0": false, "soon": false} {
		header := http.Header{"Content-Type": {"application/json"}, "Retry-After": {value}}
		err := checkContract(httptest.NewRequest("GET", "/ready", nil), 503, header, `{"status": "error"}`)
		if (err == nil) != valid {
			t.Errorf("Retry-After %q: %v", value, err)
		}
	}
}
