package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// agentInput returns the values for the agent's templates. It writes the message, the instructions
// and the MCP configuration to files in the home directory, because files in the workspace might
// end up in a commit.
func agentInput(env environment, doc *session.Document, work *workspace.Workspace, local string) (session.AgentInput,
	error) {
	routerURL := local + session.ToolsPath
	settings := &doc.Settings
	input := session.AgentInput{
		BaseURL:          local,
		RouterURL:        routerURL,
		MaxIterations:    session.Count(ptr.Deref(settings.MaxIterations, v1alpha1.DefaultMaxIterations)),
		MaxBudget:        ptr.Deref(settings.MaxBudgetPerTask, ""),
		Workspace:        env.workspace,
		Conversation:     doc.Conversation,
		Language:         ptr.Deref(settings.Language, ""),
		ConfirmationMode: ptr.Deref(settings.ConfirmationMode, false),
		RateActions: ptr.Deref(settings.ConfirmationMode, false) &&
			ptr.Deref(settings.SecurityAnalyzer, "") == driver.AnalyzerLLM,
		Condense: ptr.Deref(settings.EnableDefaultCondenser, true),
		Resumed:  work.Resumed,
	}
	setModel(&input, doc, modelAtStart(doc, "").Model)
	if self, err := os.Executable(); err == nil {
		input.Programs = filepath.Dir(self)
	}
	if doc.Repository != nil {
		input.Repository, input.Branch = work.Dir, doc.Repository.Branch
	}
	for _, image := range doc.Images {
		if image.URL != "" {
			input.Images, input.ImageURLs = append(input.Images, image.URL), append(input.ImageURLs, image.URL)
			continue
		}
		file := filepath.Join(env.imagesDir, image.Name)
		input.Images, input.ImageFiles = append(input.Images, file), append(input.ImageFiles, file)
	}
	if doc.Replay {
		input.ReplayFile = filepath.Join(env.replayDir, session.ReplayFile)
	}
	dir := filepath.Join(env.home, ".parley")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return input, fmt.Errorf("write the agent's files: %w", err)
	}
	config, err := mcpConfig(routerURL)
	if err != nil {
		return input, err
	}
	files := []struct {
		name, text string
		path       *string
	}{
		{"message.md", doc.FirstMessage, &input.MessageFile},
		{"instructions.md", doc.Instructions, &input.InstructionsFile},
		{"mcp.json", config, &input.MCPConfigFile},
	}
	for _, file := range files {
		path := filepath.Join(dir, file.name)
		if err := os.WriteFile(path, []byte(file.text), 0o600); err != nil {
			return input, fmt.Errorf("write the agent's files: %w", err)
		}
		if file.path != &input.InstructionsFile || file.text != "" {
			*file.path = path
		}
	}
	return input, nil
}

// mcpConfig returns an MCP configuration for the router, in a format that many agents read.
func mcpConfig(url string) (string, error) {
	parley := map[string]string{"type": "http", "url": url}
	text, err := json.MarshalIndent(map[string]any{"mcpServers": map[string]any{"parley": parley}}, "", "  ")
	return string(text), err
}
