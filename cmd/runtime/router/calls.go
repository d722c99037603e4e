package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// codeRejected is the SDK's own for a request that did not reach the server: no answer of the
// server's.
const codeRejected = -32005

const progressToken = "progressToken"

// within limits ctx to the time a server may take for an answer. A server that is at work may extend
// it.
func (u *upstream) within(ctx context.Context) (bounded context.Context, extend, cancel func()) {
	bounded, end := context.WithCancelCause(ctx)
	after := func(timeout time.Duration) *time.Timer {
		return time.AfterFunc(timeout, func() { end(fmt.Errorf("did not answer within %s", timeout)) })
	}
	timer, last := after(u.router.options.CallTimeout), after(u.router.options.LongestCall)
	return bounded, func() { timer.Reset(u.router.options.CallTimeout) }, func() { timer.Stop(); last.Stop(); end(nil) }
}

// callTool passes a call on to the server. What the server answers is passed back as it is, but for
// keys; that it could not answer is a result too, so that a model sees it and can do something else.
func (u *upstream) callTool(name string) mcp.ToolHandler {
	return func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		client, err := u.connected()
		if err != nil {
			return u.failedCall(err), nil
		}
		bounded, extend, cancel := u.within(ctx)
		defer cancel()
		params := &mcp.CallToolParams{Name: name, Meta: maps.Clone(request.Params.Meta)}
		if len(request.Params.Arguments) > 0 {
			params.Arguments = request.Params.Arguments
		}
		if token := request.Params.GetProgressToken(); token != nil {
			defer u.followProgress(ctx, request.Session, params, token, extend)()
		}
		result, err := client.CallTool(bounded, params)
		if err == nil {
			u.prefixLinks(result.Content)
			return result, nil
		}
		told, problem := failure(ctx, bounded, err)
		if told {
			return nil, problem
		}
		return u.failedCall(problem), nil
	}
}

// failure of a request. It is told to the client as it is where the client gave up, or the server
// itself answered with it.
func failure(ctx, bounded context.Context, err error) (told bool, problem error) {
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	switch {
	case ctx.Err() != nil:
		return true, ctx.Err()
	case bounded.Err() != nil:
		return false, context.Cause(bounded)
	case answered && answer.Code != codeRejected:
		return true, answer
	}
	return false, err
}

func (u *upstream) failedCall(err error) *mcp.CallToolResult {
	result := &mcp.CallToolResult{}
	result.SetError(u.problem(err))
	return result
}

func (u *upstream) problem(err error) error {
	return fmt.Errorf("tool server %s %s", u.name, u.router.describe(err))
}

// followProgress asks the server for progress under a token of its own, since those of two clients
// may be equal.
func (u *upstream) followProgress(ctx context.Context, to *mcp.ServerSession, params *mcp.CallToolParams, token any,
	extend func()) (stop func()) {
	own := rand.Text()
	params.Meta[progressToken] = own
	u.relays.Store(own, func(p *mcp.ProgressNotificationParams) {
		extend()
		if told, err := without(u.router.keys, p, protocol); err == nil {
			_ = to.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				Meta: told.Meta, ProgressToken: token, Message: told.Message, Progress: told.Progress, Total: told.Total,
			})
		}
	})
	return func() { u.relays.Delete(own) }
}

// relayProgress passes on what a server says under a token that it was given. It may say anything:
// a token that is no string is none of ours.
func (u *upstream) relayProgress(_ context.Context, request *mcp.ProgressNotificationClientRequest) {
	token, ok := request.Params.ProgressToken.(string)
	if !ok {
		return
	}
	if relay, ok := u.relays.Load(token); ok {
		relay.(func(*mcp.ProgressNotificationParams))(request.Params)
	}
}

func (u *upstream) getPrompt(name string) mcp.PromptHandler {
	return func(ctx context.Context, request *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		result, err := ask(ctx, u, func(ctx context.Context, client *mcp.ClientSession) (*mcp.GetPromptResult, error) {
			return client.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: request.Params.Arguments})
		})
		if err != nil {
			return nil, err
		}
		result.Messages = slices.DeleteFunc(result.Messages, func(message *mcp.PromptMessage) bool { return message == nil })
		for _, message := range result.Messages {
			u.prefixLinks([]mcp.Content{message.Content})
		}
		return result, nil
	}
}

func (u *upstream) readResource(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult,
	error) {
	uri := strings.TrimPrefix(request.Params.URI, u.uriPrefix())
	result, err := ask(ctx, u, func(ctx context.Context, client *mcp.ClientSession) (*mcp.ReadResourceResult, error) {
		return client.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
	})
	if err != nil {
		return nil, err
	}
	// The client may keep the result for the next time it is asked.
	prefixed := *result
	prefixed.Contents = make([]*mcp.ResourceContents, 0, len(result.Contents))
	for _, content := range result.Contents {
		if content != nil {
			own := *content
			own.URI = u.uriPrefix() + content.URI
			prefixed.Contents = append(prefixed.Contents, &own)
		}
	}
	return &prefixed, nil
}

// ask the server for something that is not a tool's result.
func ask[R any](ctx context.Context, u *upstream, request func(context.Context, *mcp.ClientSession) (R, error)) (none R,
	_ error) {
	client, err := u.connected()
	if err != nil {
		return none, u.problem(err)
	}
	bounded, _, cancel := u.within(ctx)
	defer cancel()
	result, err := request(bounded, client)
	if err == nil {
		return result, nil
	}
	told, problem := failure(ctx, bounded, err)
	if !told {
		problem = u.problem(problem)
	}
	return none, problem
}

// prefixLinks makes the resources that a result refers to those that the endpoint offers.
func (u *upstream) prefixLinks(contents []mcp.Content) {
	for _, content := range contents {
		switch c := content.(type) {
		case *mcp.ResourceLink:
			c.URI = u.uriPrefix() + c.URI
		case *mcp.EmbeddedResource:
			if c.Resource != nil {
				c.Resource.URI = u.uriPrefix() + c.Resource.URI
			}
		}
	}
}
