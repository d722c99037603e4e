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

// codeRejected is the SDK's code for a request that did not reach the server.
const codeRejected = -32005

const progressToken = "progressToken"

// withTimeout bounds the time that a server may take to respond. Each progress notification extends
// this time.
func (u *upstream) withTimeout(ctx context.Context) (bounded context.Context, extend, cancel func()) {
	bounded, end := context.WithCancelCause(ctx)
	after := func(timeout time.Duration) *time.Timer {
		return time.AfterFunc(timeout, func() { end(fmt.Errorf("did not answer within %s", timeout)) })
	}
	timer, last := after(u.router.options.CallTimeout), after(u.router.options.LongestCall)
	return bounded, func() { timer.Reset(u.router.options.CallTimeout) }, func() { timer.Stop(); last.Stop(); end(nil) }
}

// callTool forwards a call to the server and returns the response, with masked keys. If the server
// does not respond, the result contains the error, so that the model can try something else.
func (u *upstream) callTool(name string) mcp.ToolHandler {
	return func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		client, err := u.connected()
		if err != nil {
			return u.failedCall(err), nil
		}
		bounded, extend, cancel := u.withTimeout(ctx)
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
		final, problem := failure(ctx, bounded, err)
		if final {
			return nil, problem
		}
		return u.failedCall(problem), nil
	}
}

// failure classifies the error of a request. The error is final if the client cancelled the request
// or the server itself sent the error. The client then receives the error unchanged.
func failure(ctx, bounded context.Context, err error) (final bool, problem error) {
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
	return fmt.Errorf("tool server %s: %s", u.name, u.router.describe(err))
}

// followProgress requests progress notifications from the server. It sends the server a new
// progress token, because two clients may use the same token.
func (u *upstream) followProgress(ctx context.Context, to *mcp.ServerSession, params *mcp.CallToolParams, token any,
	extend func()) (stop func()) {
	own := rand.Text()
	params.Meta[progressToken] = own
	u.relays.Store(own, func(p *mcp.ProgressNotificationParams) {
		extend()
		if clean, err := redact(u.router.keys, p, protocol); err == nil {
			_ = to.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				Meta: clean.Meta, ProgressToken: token, Message: clean.Message, Progress: clean.Progress, Total: clean.Total,
			})
		}
	})
	return func() { u.relays.Delete(own) }
}

// relayProgress forwards progress to the client that requested it. It ignores progress tokens that
// the router did not issue.
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
	// The SDK client may cache the result, so change only a copy.
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

func ask[R any](ctx context.Context, u *upstream, request func(context.Context, *mcp.ClientSession) (R, error)) (none R,
	_ error) {
	client, err := u.connected()
	if err != nil {
		return none, u.problem(err)
	}
	bounded, _, cancel := u.withTimeout(ctx)
	defer cancel()
	result, err := request(bounded, client)
	if err == nil {
		return result, nil
	}
	final, problem := failure(ctx, bounded, err)
	if !final {
		problem = u.problem(problem)
	}
	return none, problem
}

// prefixLinks changes the resource URIs in a result to the URIs that the router serves.
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
