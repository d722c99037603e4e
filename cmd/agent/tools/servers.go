package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/version"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

const connectTimeout = 30 * time.Second

// Servers are the tool servers of a session.
type Servers struct {
	sessions []*mcp.ClientSession
	// stale is set when a server's tool list changed.
	stale  atomic.Bool
	listed []*Tool
}

// Connect connects to all servers.
func Connect(ctx context.Context, servers []acp.MCPServer) (*Servers, error) {
	s := &Servers{}
	s.stale.Store(true)
	for _, server := range servers {
		if server.Type != "http" {
			s.Close()
			return nil, fmt.Errorf("the tool server %q does not use HTTP; this agent supports no other transport", server.Name)
		}
		client := mcp.NewClient(&mcp.Implementation{Name: "parley-agent", Version: version.Parley}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { s.stale.Store(true) }})
		connecting, cancel := context.WithTimeout(ctx, connectTimeout)
		// The SDK uses this context only during Connect, so cancel does not end the session.
		session, err := client.Connect(connecting, &mcp.StreamableClientTransport{
			Endpoint: server.URL, HTTPClient: &http.Client{Transport: headers(server.Headers)}}, nil)
		cancel()
		if err != nil {
			s.Close()
			slog.Error("cannot connect to a tool server", "server", server.Name, "error", err)
			return nil, fmt.Errorf("the tool server %q cannot be reached", server.Name)
		}
		s.sessions = append(s.sessions, session)
	}
	return s, nil
}

type headers []acp.Header

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for _, header := range h {
		r.Header.Set(header.Name, header.Value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// Close closes all connections.
func (s *Servers) Close() {
	for _, session := range s.sessions {
		_ = session.Close()
	}
}

// tools lists the tools of all servers. It caches the list until a server reports a change.
func (s *Servers) tools(ctx context.Context) []*Tool {
	if !s.stale.Swap(false) {
		return s.listed
	}
	var found []*Tool
	for _, session := range s.sessions {
		for tool, err := range session.Tools(ctx, nil) {
			if err != nil {
				s.stale.Store(true)
				slog.Error("cannot list the tools of a server", "error", err)
				break
			}
			added := serverTool(session, tool)
			if find(found, added.Name) != nil {
				slog.Warn("skipping a tool, because another tool has the same name", "tool", tool.Name)
				continue
			}
			found = append(found, added)
		}
	}
	s.listed = found
	return found
}

func serverTool(session *mcp.ClientSession, tool *mcp.Tool) *Tool {
	input, _ := tool.InputSchema.(map[string]any)
	return &Tool{
		Tool: llm.Tool{Name: llm.MakeName(tool.Name), Description: tool.Description, Schema: usableSchema(input)},
		describe: func(json.RawMessage) Description {
			return Description{Title: tool.Name, Kind: kindOther, Acts: true} // a server's hints are not trusted
		},
		run: func(ctx context.Context, input json.RawMessage) Outcome {
			result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool.Name, Arguments: input})
			if err != nil {
				if ctx.Err() != nil {
					return failed("The call was interrupted.")
				}
				return failed("The call to the tool server failed: %s", Cut(err.Error(), 500))
			}
			return serverOutcome(result)
		},
	}
}

func serverOutcome(result *mcp.CallToolResult) Outcome {
	outcome := Outcome{IsError: result.IsError}
	var texts []string
	for _, content := range result.Content {
		switch c := content.(type) {
		case *mcp.TextContent:
			texts = append(texts, c.Text)
		case *mcp.ImageContent:
			image, err := llm.NewImage(c.Data)
			if err != nil {
				texts = append(texts, fmt.Sprintf("[The result has an image, but you cannot see it: %v.]", err))
				continue
			}
			outcome.Images = append(outcome.Images, *image)
		default:
			encoded, _ := json.Marshal(content)
			texts = append(texts, string(encoded))
		}
	}
	if len(result.Content) == 0 && result.StructuredContent != nil {
		encoded, _ := json.Marshal(result.StructuredContent)
		texts = append(texts, string(encoded))
	}
	outcome.Text = Cut(strings.Join(texts, "\n"), maxOutput)
	return outcome
}
