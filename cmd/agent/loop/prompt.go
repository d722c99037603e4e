package loop

import (
	"fmt"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

func systemPrompt(cwd, instructions string) string {
	prompt := `You are a software engineer. You work on a user's request with tools, in a sandbox of your own. ` +
		`The working directory is ` + cwd + `.

- Look before you change: read the code that the request is about, and follow its style and conventions.
- Do what was asked, all of it and nothing else. Prefer small changes to existing files.
- Check your work: build it, run the tests, look at the result. Fix what you broke.
- For work with several steps, maintain a task list with task_tracker.
- Do not commit, push or publish anything unless you are asked to. Never print or store secrets.
- A "***" in the result of a tool is a masked secret. Use its variable instead, and never write "***" to a file.
- If a call fails, find out why before you try again. If you are stuck, or the request is unclear in a way that ` +
		`matters, say so and ask.
- When you are done, say briefly what you did, what you checked, and what is left. An answer without a tool ` +
		`call ends your turn.`
	if instructions != "" {
		prompt += "\n\nThe repository has instructions. Follow them, unless the user says otherwise.\n\n" + instructions
	}
	return prompt
}

// message converts a prompt into the user's message.
func (s *Session) message(prompt []acp.Content) llm.Message {
	message := llm.Message{Role: llm.User}
	for _, block := range prompt {
		var part llm.Part
		switch block.Type {
		case "text":
			part.Text = block.Text
		case "image":
			part = s.attached(block.Data)
		case "resource_link":
			part.Text = fmt.Sprintf("[%s: %s]", block.Name, block.URI)
		case "resource":
			if block.Resource != nil {
				part.Text = fmt.Sprintf("%s:\n%s", block.Resource.URI, block.Resource.Text)
			}
		}
		if part.Image != nil || strings.TrimSpace(part.Text) != "" {
			message.Parts = append(message.Parts, part)
		}
	}
	return message
}

// words returns the words of the user in a prompt.
func words(prompt []acp.Content) string {
	var texts []string
	for _, block := range prompt {
		if block.Type == "text" && !block.IsContext() {
			texts = append(texts, block.Text)
		}
	}
	return strings.Join(texts, "\n")
}
