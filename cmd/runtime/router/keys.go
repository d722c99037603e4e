package router

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

// errKey is in the place of an answer that cannot be told without a key in it.
var errKey = errors.New("the answer of the tool server holds a key, and is not passed on")

// leftOut is in the place of bytes with a key in them.
const leftOut = "[left out: it holds a key of a tool server]"

// shortestSure is the length from which on a key does not stand in a name, or in the many bytes of
// an image, by chance.
const shortestSure = 8

// nameLike is what people call things, and use as passwords too.
var nameLike = regexp.MustCompile(`^[A-Za-z_-]{1,16}[0-9]{0,3}$`)

// keys take the keys of the servers out of something.
type keys struct {
	texts func(string) string
	// names are what a call must repeat. What is there is told unless it is clearly a key: a server
	// postgres may have the password postgres, and its tools must have their names.
	names func(string) string
	bytes func(string) string
}

// newKeys of the servers. The agent has the session's other secrets, and needs what a tool reads of
// its files as it stands. What Mask does not take for a secret, such as a word in a variable, is
// none here.
func newKeys(o *Options, servers []*upstream) *keys {
	all, long, sure := map[string]string{}, map[string]string{}, map[string]string{}
	add := func(file string) {
		if file == "" {
			return
		}
		value := o.Value(file)
		if o.Mask(value) == value {
			return
		}
		all[file] = value
		key := strings.TrimSpace(value)
		if len(key) < shortestSure {
			return
		}
		long[file] = value
		public := slices.ContainsFunc(servers, func(u *upstream) bool { return strings.Contains(u.name, key) })
		if !nameLike.MatchString(key) && !public {
			sure[file] = value
		}
	}
	for _, server := range o.Servers.Stdio {
		for _, variable := range server.Env {
			add(variable.ValueFile)
		}
	}
	for _, servers := range [][]session.RemoteServer{o.Servers.SSE, o.Servers.SHTTP} {
		for _, server := range servers {
			add(server.APIKeyFile)
		}
	}
	return &keys{texts: secrets.New(all).Mask, names: secrets.New(sure).Mask, bytes: secrets.New(long).Mask}
}

// withoutKeys keeps the keys of the servers from the agent, and so from the model: a server may
// repeat what it was given.
func (r *Router) withoutKeys(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, request)
		if err != nil {
			return nil, r.errorWithoutKeys(err)
		}
		switch result := result.(type) {
		case *mcp.CallToolResult:
			return without(r.keys, result, protocol)
		case *mcp.GetPromptResult:
			return without(r.keys, result, protocol)
		case *mcp.ReadResourceResult:
			return without(r.keys, result, protocol)
		case *mcp.ListToolsResult:
			return without(r.keys, result, protocol)
		case *mcp.ListPromptsResult:
			return without(r.keys, result, protocol)
		case *mcp.ListResourcesResult:
			return without(r.keys, result, protocol)
		case *mcp.ListResourceTemplatesResult:
			return without(r.keys, result, protocol)
		}
		return result, nil
	}
}

// errorWithoutKeys is the same error where it holds no key.
func (r *Router) errorWithoutKeys(err error) error {
	var answer *jsonrpc.Error
	if !errors.As(err, &answer) {
		if text := r.keys.texts(err.Error()); text != err.Error() {
			return errors.New(text)
		}
		return err
	}
	masked := &jsonrpc.Error{Code: answer.Code, Message: r.keys.texts(answer.Message), Data: answer.Data}
	if len(answer.Data) > 0 {
		data, err := without(r.keys, &answer.Data, free)
		if err != nil {
			return err
		}
		masked.Data = *data
	}
	if masked.Message == answer.Message && bytes.Equal(masked.Data, answer.Data) {
		return err
	}
	return masked
}

// place is where in an answer something stands.
type place int

const (
	protocol place = iota // its fields are those of the protocol
	schema                // of the arguments or the result of a tool
	free                  // the server's own
)

var (
	places = map[string]place{"inputSchema": schema, "outputSchema": schema, "structuredContent": free, "_meta": free,
		"input": free}
	// named are the fields of the protocol with names, and with its own words.
	named = map[string]bool{
		"name": true, "uri": true, "uriTemplate": true, "nextCursor": true,
		"type": true, "role": true, "audience": true, "mimeType": true, "resultType": true, "cacheScope": true,
	}
	// said are the fields of a schema that no call repeats.
	said = map[string]bool{"title": true, "description": true, "$comment": true, "default": true, "examples": true}
)

// without keys is the same thing where there is none in it, and else another.
func without[T any](k *keys, thing *T, in place) (*T, error) {
	text, err := json.Marshal(thing)
	if err != nil {
		return nil, errKey
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, errKey
	}
	clean := k.masked(value, "", in)
	if reflect.DeepEqual(clean, value) {
		return thing, nil
	}
	if text, err = json.Marshal(clean); err != nil {
		return nil, errKey
	}
	masked := new(T)
	if json.Unmarshal(text, masked) != nil {
		return nil, errKey // it is in what is no text, such as a size
	}
	return masked, nil
}

// masked is the value of a field. Names of fields are names: schemas have them, and results must
// agree with those.
func (k *keys) masked(value any, field string, in place) any {
	switch value := value.(type) {
	case string:
		if in == protocol && named[field] || in == schema && !said[field] {
			return k.names(value)
		}
		return k.texts(value)
	case json.Number:
		mask := k.names
		if in == free {
			mask = k.texts
		}
		if text := mask(value.String()); text != value.String() {
			return text
		}
	case []any:
		masked := make([]any, len(value))
		for i := range value {
			masked[i] = k.masked(value[i], field, in)
		}
		return masked
	case map[string]any:
		masked := map[string]any{}
		if in == protocol {
			field, data := bytesOf(value)
			if k.bytes(data) != data {
				value = withoutBytes(value)
			} else if data != "" {
				// What they are written as is no text, and holds any few letters by chance.
				masked[field] = value[field]
			}
		}
		for name, inner := range value {
			if _, done := masked[name]; done {
				continue
			}
			there := in
			if other, ok := places[name]; ok && in == protocol {
				there = other
			}
			masked[k.names(name)] = k.masked(inner, name, there)
		}
		return masked
	}
	return value
}

// bytesOf a content, and the field that they are in.
func bytesOf(content map[string]any) (field, data string) {
	field = "blob"
	if content["type"] == "image" || content["type"] == "audio" {
		field = "data"
	}
	text, _ := content[field].(string)
	decoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return field, "" // then it is a text
	}
	return field, string(decoded)
}

// withoutBytes is a text in the place of a content.
func withoutBytes(content map[string]any) map[string]any {
	text := map[string]any{"text": leftOut}
	if _, ok := content["type"]; ok {
		text["type"] = "text"
	}
	if uri, ok := content["uri"]; ok {
		text["uri"] = uri
	}
	return text
}
