// Package contract checks answers of the facade against openapi.yaml.
package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parley-dev/parley/api/rest"
)

// response documents one status code of an operation.
type response struct {
	Ref     string `json:"$ref"`
	Headers map[string]struct {
		Ref string `json:"$ref"`
	}
	Content map[string]struct{ Schema json.RawMessage }
}

// operation documents one method of a path; as a handler it can be found by a ServeMux.
type operation struct {
	http.Handler `json:"-"`
	Responses    map[string]response
}

type document struct {
	Paths      map[string]map[string]json.RawMessage
	Components struct {
		Schemas   json.RawMessage
		Responses map[string]response
		Headers   map[string]struct {
			Required bool
			Schema   json.RawMessage
		}
	}

	routes *http.ServeMux
	// mu guards compiled, the schemas that were used, by their text.
	mu       sync.Mutex
	compiled map[string]*jsonschema.Resolved
}

const (
	schemaPrefix = `"#/components/schemas/`
	dateFormat   = `"format":"date-time"`
	datePattern  = dateFormat + `,"pattern":"^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)$"`
)

var load = sync.OnceValues(func() (*document, error) {
	// Schemas are compiled one by one, beside those that they refer to. Formats are not checked by the library.
	text := strings.NewReplacer(schemaPrefix, `"#/$defs/`, dateFormat, datePattern).Replace(string(rest.OpenAPI))
	d := &document{routes: http.NewServeMux(), compiled: map[string]*jsonschema.Resolved{}}
	if err := json.Unmarshal([]byte(text), d); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	for path, methods := range d.Paths {
		for method, text := range methods {
			if method == "parameters" {
				continue
			}
			o := &operation{Handler: http.NotFoundHandler()}
			if err := json.Unmarshal(text, o); err != nil {
				return nil, fmt.Errorf("openapi.yaml: %s %s: %w", method, path, err)
			}
			d.routes.Handle(strings.ToUpper(method)+" "+path, o)
		}
	}
	return d, nil
})

// Check returns an error unless openapi.yaml documents this answer to the request. Paths and methods that
// it does not document must not exist.
func Check(request *http.Request, code int, header http.Header, body string) error {
	d, err := load()
	if err != nil {
		return err
	}
	found, _ := d.routes.Handler(request)
	o, documented := found.(*operation)
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

// validate a text that is JSON against a schema.
func (d *document) validate(schema json.RawMessage, text string) error {
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

func (d *document) compile(schema json.RawMessage) (*jsonschema.Resolved, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if compiled := d.compiled[string(schema)]; compiled != nil {
		return compiled, nil
	}
	root := &jsonschema.Schema{}
	if err := json.Unmarshal(fmt.Appendf(nil, `{"$defs": %s, "allOf": [%s]}`, d.Components.Schemas, schema), root); err != nil {
		return nil, err
	}
	compiled, err := root.Resolve(nil)
	if err == nil {
		d.compiled[string(schema)] = compiled
	}
	return compiled, err
}
