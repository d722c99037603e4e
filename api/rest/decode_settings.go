package rest

import (
	"encoding/json"
	"fmt"
	"slices"
)

// gitProviders are the git providers for which a user can store a token.
var gitProviders = []string{"github", "gitlab", "bitbucket", "enterprise_sso"}

// DecodeSettings reads the body of POST /api/settings. It ignores unknown settings, because clients
// post back the whole response to GET /api/settings, which has more fields. Within mcp_config an
// unknown field is an error.
func DecodeSettings(body []byte) (*Settings, []Detail) {
	settings := &Settings{}
	return settings, DecodeTable(body, settings)
}

// DecodeTable parses a request body into the fields of a struct such as Settings. It returns all
// errors in the body.
func DecodeTable(body []byte, table any) []Detail {
	_, details := decodeBody(body, func(o *object) any {
		for _, setting := range SettingsOf(table) {
			setting.Value.(decodable).decode(o, setting.Name)
		}
		return nil
	})
	return details
}

type decodable interface {
	decode(o *object, name string)
}

func (f *Field[T]) decode(o *object, name string) {
	raw, present := o.take(name)
	f.Present = present
	var value T
	if raw != nil && parse(o.decoder, o.loc.At(name), raw, &value) {
		f.Value = &value
	}
	if text, isText := any(f.Value).(*string); isText && text != nil && *text == "" {
		f.Value = nil // clients send "" for an input field that is empty
	}
}

func (k *Key) decode(o *object, name string) {
	raw, present := o.take(name)
	k.Present = present
	if raw != nil {
		if value, ok := keyText(o.decoder, o.loc.At(name), raw); ok {
			k.Value = &value
		}
	}
}

func parse(d *decoder, loc Location, raw json.RawMessage, target any) (ok bool) {
	switch target := target.(type) {
	case *string:
		*target, ok = text(d, loc, raw)
	case *bool:
		*target, ok = boolean(d, loc, raw)
	case *int32:
		*target, ok = smallInteger(d, loc, raw)
	case *json.Number:
		*target, ok = decimal(d, loc, raw)
	case *UserSecrets:
		*target, ok = userSecrets(d, loc, raw)
	case *MCPConfig:
		*target, ok = structure(mcpDecoder{settings: true}.config)(d, loc, raw)
	default:
		panic(fmt.Sprintf("no setting has the type %T", target))
	}
	return ok
}

func userSecrets(d *decoder, loc Location, raw json.RawMessage) (UserSecrets, bool) {
	o := d.object(loc, raw)
	if o == nil {
		return UserSecrets{}, false
	}
	return UserSecrets{
		ProviderTokens: orZero(optional(o, "provider_tokens", entries(providerToken, gitProviders...))),
		CustomSecrets:  orZero(optional(o, "custom_secrets", entries(customSecret))),
	}, true
}

// entries parses an object into a map; a null value becomes nil. If the caller lists allowed names,
// every other name is an error.
func entries[T any](parse func(*object) *T, allowed ...string) parser[map[string]*T] {
	return func(d *decoder, loc Location, raw json.RawMessage) (map[string]*T, bool) {
		o := d.object(loc, raw)
		if o == nil {
			return nil, false
		}
		values := map[string]*T{}
		for _, name := range sortedKeys(o.fields) {
			if len(allowed) > 0 && !slices.Contains(allowed, name) {
				d.fail(loc.Named(name), "enum", "Input should be 'github', 'gitlab', 'bitbucket' or 'enterprise_sso'")
				continue
			}
			values[name] = nil
			if raw := o.fields[name]; !isNull(raw) {
				if entry := d.object(loc.Named(name), raw); entry != nil {
					values[name] = parse(entry)
				}
			}
		}
		return values, true
	}
}

func providerToken(o *object) *ProviderToken {
	token := &ProviderToken{}
	token.Token.decode(o, "token")
	token.UserID.decode(o, "user_id")
	token.Host.decode(o, "host")
	return token
}

func customSecret(o *object) *CustomSecret {
	secret := &CustomSecret{}
	secret.Secret.decode(o, "secret")
	secret.Description.decode(o, "description")
	return secret
}
