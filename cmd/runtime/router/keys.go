package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

// errKey is in the place of an answer that cannot be told without a key in it.
var errKey = errors.New("the answer of the tool server holds a key, and is not passed on")

// keyMask takes the keys of the servers out of texts. The agent has the session's other secrets, and
// needs what a tool reads of its files as it stands. What Mask does not take for a secret, such as a
// word in a variable, is none here.
func keyMask(o *Options) func(string) string {
	keys := map[string]string{}
	add := func(file string) {
		if file == "" {
			return
		}
		if value := o.Value(file); o.Mask(value) != value {
			keys[file] = value
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
	return secrets.New(keys).Mask
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
			return without(r.keys, result)
		case *mcp.GetPromptResult:
			return without(r.keys, result)
		case *mcp.ReadResourceResult:
			return without(r.keys, result)
		case *mcp.ListToolsResult:
			return without(r.keys, result)
		case *mcp.ListPromptsResult:
			return without(r.keys, result)
		case *mcp.ListResourcesResult:
			return without(r.keys, result)
		case *mcp.ListResourceTemplatesResult:
			return without(r.keys, result)
		}
		return result, nil
	}
}

// errorWithoutKeys is the same error where it holds no key.
func (r *Router) errorWithoutKeys(err error) error {
	var answer *jsonrpc.Error
	if !errors.As(err, &answer) {
		if text := r.keys(err.Error()); text != err.Error() {
			return errors.New(text)
		}
		return err
	}
	masked := &jsonrpc.Error{Code: answer.Code, Message: r.keys(answer.Message), Data: answer.Data}
	if len(answer.Data) > 0 {
		data, err := without(r.keys, &answer.Data)
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

// without keys is the same thing where there is none in it, and else another.
func without[T any](mask func(string) string, thing *T) (*T, error) {
	text, err := json.Marshal(thing)
	if err != nil {
		return nil, errKey
	}
	if mask(string(text)) == string(text) {
		return thing, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, errKey
	}
	if text, err = json.Marshal(maskedValue(mask, value)); err != nil {
		return nil, errKey
	}
	masked := new(T)
	if json.Unmarshal(text, masked) != nil {
		return nil, errKey // it is in what is no text, such as an image
	}
	return masked, nil
}

func maskedValue(mask func(string) string, value any) any {
	switch value := value.(type) {
	case string:
		return mask(value)
	case json.Number:
		if text := mask(value.String()); text != value.String() {
			return text
		}
	case []any:
		for i := range value {
			value[i] = maskedValue(mask, value[i])
		}
	case map[string]any:
		masked := map[string]any{}
		for name, field := range value {
			masked[mask(name)] = maskedValue(mask, field)
		}
		return masked
	}
	return value
}
