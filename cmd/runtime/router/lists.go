package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
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

// fetch the lists of a server. The bytes that are taken are counted over all of them.
func fetch(ctx context.Context, client *mcp.ClientSession) (listed listing, err error) {
	can := client.InitializeResult().Capabilities
	if can == nil {
		return listed, nil
	}
	left := mostBytes
	if can.Tools != nil {
		listed.tools, err = collect(&left, "tools", func(cursor string) (*mcp.ListToolsResult, error) {
			return client.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
		}, func(r *mcp.ListToolsResult) ([]*mcp.Tool, string) { return r.Tools, r.NextCursor })
	}
	if can.Prompts != nil && err == nil {
		listed.prompts, err = collect(&left, "prompts", func(cursor string) (*mcp.ListPromptsResult, error) {
			return client.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: cursor})
		}, func(r *mcp.ListPromptsResult) ([]*mcp.Prompt, string) { return r.Prompts, r.NextCursor })
	}
	if can.Resources == nil || err != nil {
		return listed, err
	}
	listed.resources, err = collect(&left, "resources", func(cursor string) (*mcp.ListResourcesResult, error) {
		return client.ListResources(ctx, &mcp.ListResourcesParams{Cursor: cursor})
	}, func(r *mcp.ListResourcesResult) ([]*mcp.Resource, string) { return r.Resources, r.NextCursor })
	if err != nil {
		return listed, err
	}
	listed.templates, err = collect(&left, "resource templates",
		func(cursor string) (*mcp.ListResourceTemplatesResult, error) {
			return client.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Cursor: cursor})
		}, func(r *mcp.ListResourceTemplatesResult) ([]*mcp.ResourceTemplate, string) {
			return r.ResourceTemplates, r.NextCursor
		})
	// Not every server that has resources knows of templates.
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && answer.Code == jsonrpc.CodeMethodNotFound {
		err = nil
	}
	return listed, err
}

// collect the items of a list, page by page, while there are bytes left. itemsOf a page also returns the
// cursor of the next one, which is empty at the last.
func collect[T, R any](left *int, what string, read func(cursor string) (*R, error),
	itemsOf func(*R) (items []*T, next string)) (all list[T], err error) {
	cursor := ""
	for range mostPages {
		page, err := read(cursor)
		if err != nil {
			return list[T]{}, fmt.Errorf("list its %s: %w", what, err)
		}
		items, next := itemsOf(page)
		// A server may list nothing in place of an item.
		listed := slices.DeleteFunc(slices.Clone(items), func(item *T) bool { return item == nil })
		taken := listed[:min(len(listed), mostItems-len(all.items))]
		// The client keeps the whole page, with whatever else is in it.
		whole := size(page)
		if whole > *left {
			taken = fitting(taken, *left)
		}
		*left -= whole
		all.items = append(all.items, taken...)
		complete := len(taken) == len(listed)
		if complete && next == "" {
			return all, nil
		}
		if !complete || *left < 0 {
			break
		}
		cursor = next
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
