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

// offers contains the items of one tool server that the router offers. The keys are the items'
// names at the router. The items stay while the server is disconnected, so clients need not read
// the lists again.
type offers struct {
	tools     map[string]*mcp.Tool
	prompts   map[string]*mcp.Prompt
	resources map[string]*mcp.Resource
	templates map[string]*mcp.ResourceTemplate
}

func (u *upstream) list(ctx context.Context, client *mcp.ClientSession) error {
	ctx, cancel := context.WithTimeout(ctx, u.router.options.ConnectTimeout)
	defer cancel()
	listed, err := fetch(ctx, client)
	if err == nil {
		u.note(u.offer(listed))
	}
	return err
}

// offer offers the listed items and removes all other items of the server. The error names items
// that cannot be offered.
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
	// Release a name only after its old item is removed. Otherwise another server could claim the
	// name first, and the removal would affect the new item.
	release(u, "tool", now.tools)
	release(u, "prompt", now.prompts)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.offers = now
	return errors.Join(refused[:]...)
}

// offerAll registers new and changed items of one kind, and removes items that are no longer
// listed. rename() gives an item its name at the router and returns that name.
func offerAll[T any](before map[string]*T, listed list[T], kind string, rename func(*T) string,
	register func(listed, offered *T), remove func(...string)) (now map[string]*T, _ error) {
	now = map[string]*T{}
	var refused []error
	if listed.cut {
		refused = append(refused, fmt.Errorf("only the first %d of its %s are offered: the server exceeds the size limit "+
			"of lists", len(listed.items), kind))
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

// panicOf returns the value of a panic in call(). The SDK panics on a malformed item, such as a
// tool without a schema. The panic must affect only the server of that item.
func panicOf(call func()) (problem any) {
	defer func() { problem = recover() }()
	call()
	return nil
}
