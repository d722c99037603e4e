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

// These limits apply to the lists of one server. The lists stay in memory, and a server might send
// endless lists.
const (
	maxItems = 4000    // of each list
	maxPages = 100     // of each list
	maxBytes = 4 << 20 // of all lists together
)

type listing struct {
	tools     list[mcp.Tool]
	prompts   list[mcp.Prompt]
	resources list[mcp.Resource]
	templates list[mcp.ResourceTemplate]
}

// list is the part of a server's list that is within the limits. cut is set if the server has more
// items.
type list[T any] struct {
	items []*T
	cut   bool
}

func fetch(ctx context.Context, client *mcp.ClientSession) (listed listing, err error) {
	can := client.InitializeResult().Capabilities
	if can == nil {
		return listed, nil
	}
	left := maxBytes
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
	// Some servers have resources, but do not implement the method that lists resource templates.
	// This is not an error.
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && answer.Code == jsonrpc.CodeMethodNotFound {
		err = nil
	}
	return listed, err
}

// collect reads a list page by page, within the limits. itemsOf returns a page's items and the next
// page's cursor, which is empty after the last page.
func collect[T, R any](left *int, kind string, read func(cursor string) (*R, error),
	itemsOf func(*R) (items []*T, next string)) (all list[T], err error) {
	cursor := ""
	for range maxPages {
		page, err := read(cursor)
		if err != nil {
			return list[T]{}, fmt.Errorf("list its %s: %w", kind, err)
		}
		items, next := itemsOf(page)
		// Some servers send lists with null items. Ignore these items.
		listed := slices.DeleteFunc(slices.Clone(items), func(item *T) bool { return item == nil })
		taken := listed[:min(len(listed), maxItems-len(all.items))]
		// The SDK client keeps the whole page in memory, so the size of the whole page counts, not
		// only the size of its items.
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

func fitting[T any](items []*T, left int) []*T {
	for i, item := range items {
		if left -= size(item); left < 0 {
			return items[:i]
		}
	}
	return items
}

func size(value any) int {
	text, err := json.Marshal(value)
	if err != nil {
		return maxBytes // cannot happen: the value came as JSON
	}
	return len(text)
}
