package router

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mostItems is how long a list of a server may be.
const mostItems = 4000

// listing is what a server says that it has.
type listing struct {
	tools     []*mcp.Tool
	prompts   []*mcp.Prompt
	resources []*mcp.Resource
	templates []*mcp.ResourceTemplate
}

// offers are what the endpoint offers of one server, by the names it offers it under. They stay while the server is
// away: it comes back, and a client that read the list before need not read it again.
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
	if err != nil {
		return err
	}
	u.note(u.offer(listed))
	return nil
}

func fetch(ctx context.Context, client *mcp.ClientSession) (listed listing, err error) {
	can := client.InitializeResult().Capabilities
	if can == nil {
		return listed, nil
	}
	if can.Tools != nil {
		if listed.tools, err = collect(client.Tools(ctx, nil)); err != nil {
			return listed, fmt.Errorf("list its tools: %w", err)
		}
	}
	if can.Prompts != nil {
		if listed.prompts, err = collect(client.Prompts(ctx, nil)); err != nil {
			return listed, fmt.Errorf("list its prompts: %w", err)
		}
	}
	if can.Resources != nil {
		if listed.resources, err = collect(client.Resources(ctx, nil)); err != nil {
			return listed, fmt.Errorf("list its resources: %w", err)
		}
		// Not every server that has resources knows of templates.
		if listed.templates, err = collect(client.ResourceTemplates(ctx, nil)); err != nil && !isUnknownMethod(err) {
			return listed, fmt.Errorf("list its resource templates: %w", err)
		}
	}
	return listed, nil
}

// collect the items of a list. A server may list nothing in place of an item, and may never come to an end.
func collect[T any](items iter.Seq2[*T, error]) ([]*T, error) {
	var all []*T
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		if item != nil {
			all = append(all, item)
		}
		if len(all) == mostItems {
			break
		}
	}
	return all, nil
}

// cut says that a list is not offered beyond its bound.
func cut[T any](what string, items []*T) error {
	if len(items) < mostItems {
		return nil
	}
	return fmt.Errorf("only its first %d %s are offered", mostItems, what)
}

// offer what is listed under the server's name, and withdraw what it has no more. It returns what cannot be offered.
func (u *upstream) offer(listed listing) error {
	server, before := u.router.server, u.offers
	now := offers{map[string]*mcp.Tool{}, map[string]*mcp.Prompt{}, map[string]*mcp.Resource{}, map[string]*mcp.ResourceTemplate{}}
	refused := []error{
		cut("tools", listed.tools), cut("prompts", listed.prompts), cut("resources", listed.resources), cut("resource templates", listed.templates),
	}
	for _, tool := range listed.tools {
		offered := *tool
		offered.Name = u.router.claim(u, "tool", tool.Name)
		refused = append(refused, add(before.tools, now.tools, offered.Name, &offered, func() {
			server.AddTool(&offered, u.callTool(tool.Name))
		}))
	}
	for _, prompt := range listed.prompts {
		offered := *prompt
		offered.Name = u.router.claim(u, "prompt", prompt.Name)
		refused = append(refused, add(before.prompts, now.prompts, offered.Name, &offered, func() {
			server.AddPrompt(&offered, u.getPrompt(prompt.Name))
		}))
	}
	for _, resource := range listed.resources {
		offered := *resource
		offered.Name, offered.URI = u.name+"_"+resource.Name, u.uriPrefix()+resource.URI
		refused = append(refused, add(before.resources, now.resources, offered.URI, &offered, func() {
			server.AddResource(&offered, u.readResource)
		}))
	}
	for _, template := range listed.templates {
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

// add what was not offered before as it is now. The SDK panics at what it finds malformed, such as a tool without a
// schema; that must stay the problem of the server it comes from.
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
