package publish

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/cmd/runtime/router"
)

// Tools returns the agent's tools for the git host, or nil if the session has no token for the
// host. The runtime runs these tools, so the agent does not need the token.
func (p *Publisher) Tools() []router.Builtin {
	if p.Host == nil {
		return nil
	}
	text := func(about string) map[string]any { return map[string]any{"type": "string", "description": about} }
	return []router.Builtin{
		tool(p, "create_pull_request", "Push the current branch and open a pull request (GitLab: merge request) for it. "+
			"Commit your work to a branch of its own first. The result is the link. If the branch already has an open pull "+
			"request, this pushes the new commits and returns the existing link.",
			map[string]any{"title": text("title"), "body": text("description, as Markdown"),
				"base": text("branch to merge into; default: the branch the session started from")},
			[]string{"title"}, p.CreatePullRequest),
		tool(p, "comment", "Comment on a pull request (GitLab: merge request) or an issue of the repository. The result "+
			"is the link of the comment.",
			map[string]any{"number": map[string]any{"type": "integer", "minimum": 1, "description": "number of the pull " +
				"request or issue"},
				"issue": map[string]any{"type": "boolean", "description": "set for an issue"},
				"body":  text("comment, as Markdown")},
			[]string{"number", "body"}, p.comment),
		tool(p, "read_git_host", "Read the API of the repository's git host: issues, pull requests, their comments, "+
			"commits, checks and the logs of checks.",
			map[string]any{"path": text("path relative to the repository in the host's REST API, such as " +
				"/issues/12/comments?per_page=50 on GitHub and Gitea, /merge_requests/3/notes on GitLab, " +
				"/pullrequests/3/comments on Bitbucket")},
			[]string{"path"}, p.read),
	}
}

// tool returns a tool whose input has these properties. If run() fails, the error becomes the
// tool's result, so the model can read it.
func tool[T any](p *Publisher, name, about string, properties map[string]any, required []string,
	run func(context.Context, T) (string, error)) router.Builtin {
	schema := map[string]any{"type": "object", "properties": properties, "required": required,
		"additionalProperties": false}
	return router.Builtin{Tool: &mcp.Tool{Name: name, Description: about, InputSchema: schema},
		Run: func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var input T
			result := &mcp.CallToolResult{}
			if len(request.Params.Arguments) > 0 {
				if err := json.Unmarshal(request.Params.Arguments, &input); err != nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
						Message: "the arguments do not match the schema of the tool"}
				}
			}
			said, err := run(ctx, input)
			if err != nil {
				said = err.Error()
			}
			result.Content, result.IsError = []mcp.Content{&mcp.TextContent{Text: p.Mask(said)}}, err != nil
			return result, nil
		}}
}

type comment struct {
	Number int    `json:"number"`
	Issue  bool   `json:"issue"`
	Body   string `json:"body"`
}

func (p *Publisher) comment(ctx context.Context, c comment) (string, error) {
	if c.Number < 1 || c.Body == "" {
		return "", errors.New("number and body are required")
	}
	link, err := p.Host.Comment(ctx, c.Number, c.Issue, c.Body)
	if err == nil && link == "" {
		link = "The comment was added."
	}
	return link, err
}

func (p *Publisher) read(ctx context.Context, r struct {
	Path string `json:"path"`
}) (string, error) {
	return p.Host.Read(ctx, r.Path)
}
