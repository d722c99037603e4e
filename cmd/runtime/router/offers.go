package router

import (
	"context"
	"errors"
	"fmt"
	"reflect"

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

// note says that a list is not offered beyond its bounds.
func (l list[T]) note(what string) error {
	if !l.cut {
		return nil
	}
	return fmt.Errorf("only the first %d of its %s are offered: it lists more than is taken of one server", len(l.items),
		what)
}

// offer what is listed under the server's name, and withdraw what it has no more. It returns what
// cannot be offered.
func (u *upstream) offer(listed listing) error {
	server, before := u.router.server, u.offers
	now := offers{map[string]*mcp.Tool{}, map[string]*mcp.Prompt{}, map[string]*mcp.Resource{},
		map[string]*mcp.ResourceTemplate{}}
	refused := []error{
		listed.tools.note("tools"), listed.prompts.note("prompts"), listed.resources.note("resources"),
		listed.templates.note("resource templates"),
	}
	for _, tool := range listed.tools.items {
		offered := *tool
		offered.Name = u.router.claim(u, "tool", tool.Name)
		refused = append(refused, add(before.tools, now.tools, offered.Name, &offered, func() {
			server.AddTool(&offered, u.callTool(tool.Name))
		}))
	}
	for _, prompt := range listed.prompts.items {
		offered := *prompt
		offered.Name = u.router.claim(u, "prompt", prompt.Name)
		refused = append(refused, add(before.prompts, now.prompts, offered.Name, &offered, func() {
			server.AddPrompt(&offered, u.getPrompt(prompt.Name))
		}))
	}
	for _, resource := range listed.resources.items {
		offered := *resource
		offered.Name, offered.URI = u.name+"_"+resource.Name, u.uriPrefix()+resource.URI
		refused = append(refused, add(before.resources, now.resources, offered.URI, &offered, func() {
			server.AddResource(&offered, u.readResource)
		}))
	}
	for _, template := range listed.templates.items {
		offered := *template
		offered.Name, offered.URITemplate = u.name+"_"+template.Name, u.uriPrefix()+template.URITemplate
		refused = append(refused, add(before.templates, now.templates, offered.URITemplate, &offered, func() {
			server.AddResourceTemplate(&offered, u.readResource)
		}))
	}
	server.RemoveTools(gone(before.tools, now.tools)...)
	server.RemovePrompts(gone(before.prompts, now.prompts)...)
	server.RemoveResources(gone(before.resources, now.resources)...)
	server.RemoveResourceTemplates(gone(before.templates, now.templates)...)
	// Not earlier: what has the name next must not be what is removed.
	release(u, "tool", now.tools)
	release(u, "prompt", now.prompts)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.offers = now
	return errors.Join(refused...)
}

// add what was not offered before as it is now. The SDK panics at what it finds malformed, such as
// a tool without a schema; that must stay the problem of the server it comes from.
func add[T any](before, now map[string]*T, name string, item *T, register func()) (err error) {
	if was, ok := before[name]; !ok || !reflect.DeepEqual(was, item) {
		defer func() {
			if problem := recover(); problem != nil {
				delete(now, name)
				err = fmt.Errorf("%s is not offered: %v", name, problem)
			}
		}()
		register()
	}
	now[name] = item
	return nil
}

func gone[T any](before, now map[string]*T) []string {
	var names []string
	for name := range before {
		if _, still := now[name]; !still {
			names = append(names, name)
		}
	}
	return names
}
