// Command toolserver is an MCP server for tests. It uses standard input and output.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type echoInput struct {
	Text string `json:"text"`
}

type echoOutput struct {
	Text string `json:"text"`
	// HasKey reports whether the server has its key. The output must not contain the key itself.
	HasKey bool `json:"hasKey"`
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "toolserver", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "Returns its input."},
		func(_ context.Context, _ *mcp.CallToolRequest, in echoInput) (*mcp.CallToolResult, echoOutput, error) {
			return nil, echoOutput{Text: in.Text, HasKey: os.Getenv("TOOL_KEY") != ""}, nil
		})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, "toolserver:", err)
		os.Exit(1)
	}
}
