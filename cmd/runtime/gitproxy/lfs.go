package gitproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"strings"
)

// rewriteBatch changes an LFS batch response, which tells git-lfs how to transfer objects. Hosts
// such as GitLab and Gitea store objects themselves and repeat the request's Authorization header
// in this response. The proxy removes that header and directs these transfers to its own address.
// Transfers to other hosts keep their credentials, because such a credential is valid only for a
// single object.
func (p *Proxy) rewriteBatch(text []byte) ([]byte, error) {
	var answer map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&answer) != nil {
		return nil, errors.New("the LFS response is not JSON")
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
	// Remove each header that contains a secret of the session, such as its token, whichever host
	// the transfer uses. The credentials that other hosts expect are not secrets of the session, so
	// they stay.
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
