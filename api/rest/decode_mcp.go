package rest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// mcpDecoder reads tool servers. It refuses unknown fields, because a list with a misspelt name
// would count as missing. A missing list removes its stored servers and their keys. In settings,
// mcpDecoder ignores the fields api_key_set and timeout, because clients send back the settings
// that they read.
type mcpDecoder struct{ settings bool }

func (m mcpDecoder) config(o *object) MCPConfig {
	config := MCPConfig{
		SSEServers:   orZero(optional(o, "sse_servers", list(m.remote))),
		StdioServers: orZero(optional(o, "stdio_servers", list(structure(stdioServer)))),
		SHTTPServers: orZero(optional(o, "shttp_servers", list(m.remote))),
	}
	forbidRepetition(o, "sse_servers", config.SSEServers, func(s MCPRemoteServer) string { return s.URL })
	forbidRepetition(o, "stdio_servers", config.StdioServers, func(s MCPStdioServer) string { return s.Name })
	forbidRepetition(o, "shttp_servers", config.SHTTPServers, func(s MCPRemoteServer) string { return s.URL })
	return config
}

// forbidRepetition refuses entries with the same name. Server-side apply fails on a list that
// repeats its map key.
func forbidRepetition[T any](o *object, list string, entries []T, name func(T) string) {
	seen := map[string]bool{}
	for i, entry := range entries {
		// Two entries without a name also count as repeated, unless there is another error, which may
		// already say that the name is missing.
		if seen[name(entry)] && (name(entry) != "" || len(o.details) == 0) {
			o.fail(o.loc.At(list).At(i), "value_error", "An entry is listed twice")
		}
		seen[name(entry)] = true
	}
}

// remote parses a server: an object, or just its URL.
func (m mcpDecoder) remote(d *decoder, loc Location, raw json.RawMessage) (MCPRemoteServer, bool) {
	if raw[0] == '"' {
		url, ok := text(d, loc, raw)
		return MCPRemoteServer{URL: url}, ok
	}
	return structure(func(o *object) MCPRemoteServer {
		server := MCPRemoteServer{URL: required(o, "url", text)}
		server.APIKey.decode(o, "api_key")
		if m.settings {
			o.take("api_key_set")
			o.take("timeout")
		}
		return server
	})(d, loc, raw)
}

func stdioServer(o *object) MCPStdioServer {
	return MCPStdioServer{
		Name: required(o, "name", text), Command: required(o, "command", text),
		Args: orZero(optional(o, "args", arguments)), Env: orZero(optional(o, "env", environment)),
	}
}

// arguments parses a list, or one string with shell quotes.
func arguments(d *decoder, loc Location, raw json.RawMessage) ([]string, bool) {
	if raw[0] != '"' {
		return list(text)(d, loc, raw)
	}
	line, _ := text(d, loc, raw)
	words, ok := splitWords(line)
	if !ok {
		d.fail(loc, "value_error", "Value error, a quote in the arguments is not closed")
	}
	return words, ok
}

// splitWords splits a line like a shell, but handles only quotes and backslashes. Variables and
// patterns stay as they are, because only the session knows their values.
func splitWords(line string) (words []string, ok bool) {
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteRune('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			inWord, escaped = true, true
		case r == quote && quote != 0:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			inWord, quote = true, r
		case strings.ContainsRune(" \t\r\n", r):
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			inWord = true
			word.WriteRune(r)
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, quote == 0 && !escaped
}

// environment parses an object, or one string of the form K=V,K2=V2.
func environment(d *decoder, loc Location, raw json.RawMessage) (map[string]Key, bool) {
	if raw[0] == '"' {
		return environmentFromText(d, loc, raw)
	}
	o := d.object(loc, raw)
	if o == nil {
		return nil, false
	}
	env := map[string]Key{}
	for _, name := range sortedKeys(o.fields) {
		value := Key{Field[string]{Present: true}}
		if raw := o.fields[name]; !isNull(raw) {
			if text, ok := keyText(d, loc.Named(name), raw); ok {
				value.Value = &text
			}
		}
		env[name] = value
	}
	return env, true
}

func environmentFromText(d *decoder, loc Location, raw json.RawMessage) (map[string]Key, bool) {
	pairs, _ := text(d, loc, raw)
	env := map[string]Key{}
	for pair := range strings.SplitSeq(pairs, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		if name = strings.TrimSpace(name); !found || name == "" {
			d.fail(loc, "value_error", "Value error, the environment must be an object or a string of the form K=V,K2=V2")
			return nil, false
		}
		value = strings.TrimSpace(value)
		keyFits(d, loc, value)
		env[name] = NewKey(value)
	}
	return env, true
}
