package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// offers are what the endpoint offers of one server, by the names it offers it under. They stay
// while the server is away: it comes back, and a client that read the list before need not read it
// again.
type offers struct {
	tools     map[string]*mcp.Tool
	prompts   map[string]*mcp.Prompt
	resources map[string]*mcp.Resource
	templates map[string]*mcp.ResourceTemplate
}

// list makes what the endpoint offers of the server equal to what the server lists.
func (u *upstream) list(ctx context.Context, client *mcp.ClientSession) error {
	ctx, cancel := context.WithTimeout(ctx, u.router.options.ConnectTimeout)
	defer cancel()
	listed, err := fetch(ctx, client)
	if err == nil {
		u.note(u.offer(listed))
	}
	return err
}

// offer what is listed under the server's name, and withdraw what it has no more. It returns what
// cannot be offered.
func (u *upstream) offer(listed listing) error {
	server, before := u.router.server, u.offers
	var now offers
	var refused [4]error
	now.tools, refused[0] = offerAll(before.tools, listed.tools, "tools", func(tool *mcp.Tool) string {
		tool.Name = u.router.claim(u, "tool", tool.Name)
		return tool.Name
	}, func(listed, offered *mcp.Tool) { server.AddTool(offered, u.callTool(listed.Name)) }, server.RemoveTools)
	now.prompts, refused[1] = offerAll(before.prompts, listed.prompts, "prompts", func(prompt *mcp.Prompt) string {
		prompt.Name = u.router.claim(u, "prompt", prompt.Name)
		return prompt.Name
	}, func(listed, offered *mcp.Prompt) { server.AddPrompt(offered, u.getPrompt(listed.Name)) }, server.RemovePrompts)
	now.resources, refused[2] = offerAll(before.resources, listed.resources, "resources", func(r *mcp.Resource) string {
		r.Name, r.URI = u.name+"_"+r.Name, u.uriPrefix()+r.URI
		return r.URI
	}, func(_, offered *mcp.Resource) { server.AddResource(offered, u.readResource) }, server.RemoveResources)
	now.templates, refused[3] = offerAll(before.templates, listed.templates, "resource templates",
		func(t *mcp.ResourceTemplate) string {
			t.Name, t.URITemplate = u.name+"_"+t.Name, u.uriPrefix()+t.URITemplate
			return t.URITemplate
		}, func(_, offered *mcp.ResourceTemplate) { server.AddResourceTemplate(offered, u.readResource) },
		server.RemoveResourceTemplates)
	// Not earlier: what has the name next must not be what is removed.
	release(u, "tool", now.tools)
	release(u, "prompt", now.prompts)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.offers = now
	return errors.Join(refused[:]...)
}

// offerAll registers the items of one kind that were not offered before as they are now, and removes
// those that are not listed any more. rename makes an item the one that the endpoint offers, and
// returns what it is known by there.
func offerAll[T any](before map[string]*T, listed list[T], what string, rename func(*T) string,
	register func(listed, offered *T), remove func(...string)) (now map[string]*T, _ error) {
	now = map[string]*T{}
	var refused []error
	if listed.cut {
		refused = append(refused, fmt.Errorf("only the first %d of its %s are offered: it lists more than is taken of one "+
			"server", len(listed.items), what))
	}
	for _, item := range listed.items {
		offered := *item
		name := rename(&offered)
		if was, ok := before[name]; !ok || !reflect.DeepEqual(was, &offered) {
			if problem := panicOf(func() { register(item, &offered) }); problem != nil {
				delete(now, name)
				refused = append(refused, fmt.Errorf("%s is not offered: %v", name, problem))
				continue
			}
		}
		now[name] = &offered
	}
	isOffered := func(name string) bool { return now[name] != nil }
	remove(slices.DeleteFunc(slices.Collect(maps.Keys(before)), isOffered)...)
	return now, errors.Join(refused...)
}

// panicOf a call. The SDK panics at what it finds malformed, such as a tool without a schema; that
// must stay the problem of the server it comes from.
func panicOf(call func()) (problem any) {
	defer func() { problem = recover() }()
	call()
	return nil
}
