package gitproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"strings"
)

// rewriteBatch changes the response of an LFS host that says how to transfer objects. Hosts that
// store the objects themselves, such as GitLab and Gitea, repeat the Authorization header of the
// request. The proxy removes it, and directs the transfers to the loopback address. Transfers to
// another host have their own credentials, each valid for one object.
func (p *Proxy) rewriteBatch(text []byte) ([]byte, error) {
	var answer map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&answer) != nil {
		return nil, errors.New("the response of LFS is not JSON")
	}
	objects, _ := answer["objects"].([]any)
	for _, object := range objects {
		fields, _ := object.(map[string]any)
		actions, _ := fields["actions"].(map[string]any)
		for _, action := range actions {
			if fields, ok := action.(map[string]any); ok {
				p.rewriteAction(fields)
			}
		}
	}
	return json.Marshal(answer)
}

func (p *Proxy) rewriteAction(action map[string]any) {
	href, _ := action["href"].(string)
	target, err := url.Parse(href)
	if err != nil {
		return
	}
	headers, _ := action["header"].(map[string]any)
	// A header with the token is not for another host either.
	maps.DeleteFunc(headers, func(_ string, value any) bool {
		text, _ := value.(string)
		return p.options.Mask(text) != text
	})
	local := p.localised(target)
	if local == target.String() {
		return
	}
	maps.DeleteFunc(headers, func(name string, _ any) bool { return strings.EqualFold(name, "Authorization") })
	if headers == nil {
		headers = map[string]any{}
	}
	headers[Header] = p.secret
	action["href"], action["header"] = local, headers
}
