package router

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What of a server's lists is taken. A server may never come to an end, and all that it lists stays
// in memory.
const (
	mostItems = 4000 // of each list
	mostPages = 100  // of each list
	mostBytes = 4 << 20
)

// listing is what a server says that it has.
type listing struct {
	tools     list[mcp.Tool]
	prompts   list[mcp.Prompt]
	resources list[mcp.Resource]
	templates list[mcp.ResourceTemplate]
}

// list is as much of a server's list as is taken. It is cut where the server has more.
type list[T any] struct {
	items []*T
	cut   bool
}

// page is what a server lists at once; next is empty at the last one.
type page[T any] struct {
	items  []*T
	next   string
	result any
}

// fetch the lists of a server. The bytes that are taken are counted over all of them.
func fetch(ctx context.Context, client *mcp.ClientSession) (listed listing, err error) {
	can := client.InitializeResult().Capabilities
	if can == nil {
		return listed, nil
	}
	left := mostBytes
	if can.Tools != nil {
		listed.tools, err = collect(&left, func(cursor string) (page[mcp.Tool], error) {
			r, err := client.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
			return pageOf(r, err, func() ([]*mcp.Tool, string) { return r.Tools, r.NextCursor })
		})
		if err != nil {
			return listed, fmt.Errorf("list its tools: %w", err)
		}
	}
	if can.Prompts != nil {
		listed.prompts, err = collect(&left, func(cursor string) (page[mcp.Prompt], error) {
			r, err := client.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: cursor})
			return pageOf(r, err, func() ([]*mcp.Prompt, string) { return r.Prompts, r.NextCursor })
		})
		if err != nil {
			return listed, fmt.Errorf("list its prompts: %w", err)
		}
	}
	if can.Resources == nil {
		return listed, nil
	}
	listed.resources, err = collect(&left, func(cursor string) (page[mcp.Resource], error) {
		r, err := client.ListResources(ctx, &mcp.ListResourcesParams{Cursor: cursor})
		return pageOf(r, err, func() ([]*mcp.Resource, string) { return r.Resources, r.NextCursor })
	})
	if err != nil {
		return listed, fmt.Errorf("list its resources: %w", err)
	}
	listed.templates, err = collect(&left, func(cursor string) (page[mcp.ResourceTemplate], error) {
		r, err := client.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Cursor: cursor})
		return pageOf(r, err, func() ([]*mcp.ResourceTemplate, string) { return r.ResourceTemplates, r.NextCursor })
	})
	// Not every server that has resources knows of templates.
	if err != nil && !isUnknownMethod(err) {
		return listed, fmt.Errorf("list its resource templates: %w", err)
	}
	return listed, nil
}

// pageOf the result of a request, where it has one.
func pageOf[T any](result any, err error, items func() ([]*T, string)) (page[T], error) {
	if err != nil {
		return page[T]{}, err
	}
	list, next := items()
	return page[T]{list, next, result}, nil
}

// collect the items of a list, page by page, while there are bytes left.
func collect[T any](left *int, read func(cursor string) (page[T], error)) (all list[T], err error) {
	cursor := ""
	for range mostPages {
		page, err := read(cursor)
		if err != nil {
			return list[T]{}, err
		}
		// A server may list nothing in place of an item.
		listed := slices.DeleteFunc(slices.Clone(page.items), func(item *T) bool { return item == nil })
		taken := listed[:min(len(listed), mostItems-len(all.items))]
		// The client keeps the whole page, with whatever else is in it.
		whole := size(page.result)
		if whole > *left {
			taken = fitting(taken, *left)
		}
		*left -= whole
		all.items = append(all.items, taken...)
		complete := len(taken) == len(listed)
		if complete && page.next == "" {
			return all, nil
		}
		if !complete || *left < 0 {
			break
		}
		cursor = page.next
	}
	all.cut = true
	return all, nil
}

// fitting are the first of the items, as many as there are bytes for.
func fitting[T any](items []*T, left int) []*T {
	for i, item := range items {
		if left -= size(item); left < 0 {
			return items[:i]
		}
	}
	return items
}

// size is how long something would be on its way here.
func size(what any) int {
	text, err := json.Marshal(what)
	if err != nil {
		return mostBytes // it came as JSON, so this does not happen
	}
	return len(text)
}
