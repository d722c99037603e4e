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

// errKey is returned in place of a response that contains a key where it cannot be masked.
var errKey = errors.New("the tool server's answer contains one of its keys and was withheld")

const leftOut = "[omitted: contains a key of a tool server]"

// minKeyLength is the minimum length of keys that are masked in names and binary data. A shorter
// key may occur in such data by chance.
const minKeyLength = 8

// nameLike matches short words such as postgres, which may be both a name and a password.
var nameLike = regexp.MustCompile(`^[A-Za-z_-]{1,16}[0-9]{0,3}$`)

type keys struct {
	texts func(string) string
	// names is the mask for names that the agent must send back in a call, such as a tool's name. It
	// hides only values that are clearly keys. For example, a server named postgres may have the
	// password postgres, and its tools must keep their names.
	names func(string) string
	bytes func(string) string
}

// newKeys returns a mask for the tool servers' keys. The mask does not hide the session's other
// secrets: the agent already has them, and must receive a tool server's files unchanged, even if
// the files contain such secrets. Keys that o.Mask leaves unchanged, such as plain words, are not
// masked either.
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
		if len(key) < minKeyLength {
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

// redactKeys masks the servers' keys in results, because a server may send its key to the agent.
func (r *Router) redactKeys(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, request)
		if err != nil {
			return nil, r.redactError(err)
		}
		switch result.(type) {
		case *mcp.CallToolResult, *mcp.GetPromptResult, *mcp.ReadResourceResult, *mcp.ListToolsResult,
			*mcp.ListPromptsResult, *mcp.ListResourcesResult, *mcp.ListResourceTemplatesResult:
			return redact(r.keys, result, protocol)
		}
		return result, nil
	}
}

func (r *Router) redactError(err error) error {
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	if !answered {
		if text := r.keys.texts(err.Error()); text != err.Error() {
			return errors.New(text)
		}
		return err
	}
	masked := &jsonrpc.Error{Code: answer.Code, Message: r.keys.texts(answer.Message), Data: answer.Data}
	if len(answer.Data) > 0 {
		data, err := redact(r.keys, &answer.Data, free)
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

// section is a part of a response. Each section is masked differently.
type section int

const (
	protocol section = iota // fields defined by the protocol
	schema                  // a schema of a tool's arguments or result
	free                    // the server's own data
)

var (
	sections = map[string]section{"inputSchema": schema, "outputSchema": schema, "structuredContent": free, "_meta": free,
		"input": free}
	// nameFields are protocol fields that contain a name or a keyword of the protocol.
	nameFields = map[string]bool{
		"name": true, "uri": true, "uriTemplate": true, "nextCursor": true,
		"type": true, "role": true, "audience": true, "mimeType": true, "resultType": true, "cacheScope": true,
	}
	// textFields are schema fields whose values the agent never sends back in a call.
	textFields = map[string]bool{"title": true, "description": true, "$comment": true, "default": true, "examples": true}
)

// redact copies the value that thing points to, masks keys in the copy, and returns a pointer to
// the copy. If the value contains no key, redact returns thing itself.
func redact[T any](k *keys, thing T, in section) (none T, _ error) {
	text, err := json.Marshal(thing)
	if err != nil {
		return none, errKey
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return none, errKey
	}
	clean := k.masked(value, "", in)
	if reflect.DeepEqual(clean, value) {
		return thing, nil
	}
	if text, err = json.Marshal(clean); err != nil {
		return none, errKey
	}
	masked := reflect.New(reflect.TypeOf(thing).Elem()).Interface()
	if json.Unmarshal(text, masked) != nil {
		return none, errKey // the key is in a field that is not a text, such as a size
	}
	return masked.(T), nil
}

// masked masks the keys of tool servers in a JSON value. Field names must match the schema, so
// masked changes a field name only if it contains text that is clearly such a key.
func (k *keys) masked(value any, field string, in section) any {
	switch value := value.(type) {
	case string:
		if in == protocol && nameFields[field] || in == schema && !textFields[field] {
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
				value = omitContent(value)
			} else if data != "" {
				// The data contains no long key. Its base64 text may contain a short key by chance.
				// Do not mask the text, because that would corrupt the data.
				masked[field] = value[field]
			}
		}
		for name, inner := range value {
			if _, done := masked[name]; done {
				continue
			}
			there := in
			if other, ok := sections[name]; ok && in == protocol {
				there = other
			}
			masked[k.names(name)] = k.masked(inner, name, there)
		}
		return masked
	}
	return value
}

// bytesOf returns the decoded binary data of a content block, and the name of its field.
func bytesOf(content map[string]any) (field, data string) {
	field = "blob"
	if content["type"] == "image" || content["type"] == "audio" {
		field = "data"
	}
	text, _ := content[field].(string)
	decoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return field, "" // not base64: it is masked as text
	}
	return field, string(decoded)
}

// omitContent returns the text block that takes the place of a block that has binary content.
func omitContent(content map[string]any) map[string]any {
	text := map[string]any{"text": leftOut}
	if _, ok := content["type"]; ok {
		text["type"] = "text"
	}
	if uri, ok := content["uri"]; ok {
		text["uri"] = uri
	}
	return text
}
