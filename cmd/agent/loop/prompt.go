package loop

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
)

const (
	// maxInstructions limits the size of one file of instructions, and maxAllInstructions limits
	// the size of all files together.
	maxInstructions    = 16 << 10
	maxAllInstructions = 64 << 10
	microagents        = ".openhands/microagents"
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

// readInstructions reads the repository's instructions that apply to all messages.
func readInstructions(dir string) string {
	var texts []string
	add := func(name, text string) {
		text = strings.TrimSpace(text)
		// CLAUDE.md is often a copy of AGENTS.md, or a link to it.
		if text != "" && !slices.ContainsFunc(texts, func(t string) bool { return strings.HasSuffix(t, "\n"+text) }) {
			texts = append(texts, "From "+name+":\n"+text)
		}
	}
	for _, name := range []string{"AGENTS.md", "CLAUDE.md"} {
		add(name, readBounded(filepath.Join(dir, name)))
	}
	for _, m := range readMicroagents(dir) {
		if len(m.triggers) == 0 {
			add(m.name, m.text)
		}
	}
	return tools.Cut(strings.Join(texts, "\n\n"), maxAllInstructions)
}

// microagent is a file of instructions for all messages, or for messages with a trigger word.
type microagent struct {
	name, text string
	triggers   []string
}

func readMicroagents(dir string) []microagent {
	files, _ := filepath.Glob(filepath.Join(dir, microagents, "*.md")) // the pattern is valid
	var found []microagent
	for _, file := range files {
		m := microagent{name: filepath.Join(microagents, filepath.Base(file)), text: readBounded(file)}
		if rest, ok := strings.CutPrefix(m.text, "---\n"); ok {
			if front, body, ok := strings.Cut(rest, "\n---"); ok {
				var header struct {
					Triggers []string `json:"triggers"`
				}
				_ = yaml.Unmarshal([]byte(front), &header) // a file without readable triggers applies to all messages
				m.triggers, m.text = header.Triggers, body
			}
		}
		found = append(found, m)
	}
	return found
}

func readBounded(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	content, _ := io.ReadAll(io.LimitReader(file, 4*maxInstructions)) // use as much as can be read
	return tools.Cut(strings.ReplaceAll(string(content), "\r\n", "\n"), maxInstructions)
}

// message converts a prompt into the user's message, and adds the instructions that its words
// trigger.
func (s *Session) message(prompt []acp.Content) (message llm.Message, triggered []string) {
	message.Role = llm.User
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
	text := message.Text()
	for _, m := range readMicroagents(s.state.cwd) {
		matches := slices.ContainsFunc(m.triggers, func(word string) bool { return hasWord(text, word) })
		if matches && !s.state.triggered[m.name] {
			triggered = append(triggered, m.name)
			message.Parts = append(message.Parts, llm.Part{Text: "From the repository's " + m.name +
				", which applies to this message:\n" + strings.TrimSpace(m.text)})
		}
	}
	return message, triggered
}

func hasWord(text, word string) bool {
	if word = strings.TrimSpace(word); word == "" {
		return false
	}
	found, err := regexp.MatchString(`(?i)(^|\W)`+regexp.QuoteMeta(word)+`($|\W)`, text)
	return err == nil && found
}
