package driver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// maxTranscript bounds the size in bytes of the history that an agent receives if it cannot resume
// its session.
const maxTranscript = 48 << 10

const interrupted = "The session was interrupted while you worked on the message below, and was restarted. " +
	"Commands that were running may be only partly done. Check the current state, do not repeat finished work, and " +
	"continue with the message:"

// sentLater precedes a message that had reached the agent during the interrupted turn.
const sentLater = "While you worked, the user also sent this message. Where messages disagree, the latest one counts:"

// continues is the prompt if a user resumes a paused agent without a message.
const continues = "Continue."

// instructions returns the text that precedes the first message of an ACP session.
func (d *Driver) instructions() string {
	var parts []string
	settings := &d.Doc.Settings
	if d.Doc.Repository != nil {
		parts = append(parts, d.aboutRepository())
	}
	if language := ptr.Deref(settings.Language, ""); language != "" {
		parts = append(parts, fmt.Sprintf("Answer in this language: %s.", language))
	}
	if len(d.Doc.CustomSecrets) > 0 {
		list := "These environment variables hold secrets of the user. Use them, and never print them:"
		for _, secret := range d.Doc.CustomSecrets {
			list += "\n- " + secret.Name
			if secret.Description != "" {
				list += ": " + secret.Description
			}
		}
		parts = append(parts, list)
	}
	if d.Doc.Task && ptr.Deref(settings.EnableSolvabilityAnalysis, true) {
		parts = append(parts, "Before you change anything, study the task and say in one message whether you can solve it "+
			"with the tools that you have, and if not, what is missing. Then continue if you can.")
	}
	if d.Doc.Instructions != "" {
		parts = append(parts, "The user's instructions for this session:\n"+d.Doc.Instructions)
	}
	return strings.Join(parts, "\n\n")
}

func (d *Driver) aboutRepository() string {
	r := d.Doc.Repository
	text := fmt.Sprintf("The repository %s", r.Name)
	remote, err := workspace.Locate(r)
	if err == nil && remote.URL.Host != "" {
		text += " of " + remote.URL.Host
	}
	if r.Branch != "" {
		text += ", branch " + r.Branch + ","
	}
	text += fmt.Sprintf(" is in %s.", d.Dir)
	if err == nil && remote.User != "" && r.TokenFile != "" {
		text += " git works with this host without a password. To open a pull request, commit to a separate branch and " +
			"use the tool `create_pull_request`. The tool `comment` adds comments. The tool `read_git_host` reads comments, " +
			"issues and checks."
	}
	if ptr.Deref(d.Doc.Settings.ExposeGitTokenToAgent, false) && r.TokenFile != "" {
		text += " The variable " + session.TokenVariable(r.Provider) + " holds the host's token for other programs."
	}
	return text
}

// prompt builds the agent's prompt for a message. It adds the instructions and the history if the
// agent needs them.
func (d *Driver) prompt(ctx context.Context, t task) (acp.PromptParams, error) {
	message, err := d.event(t.message)
	if err != nil {
		return acp.PromptParams{}, err
	}
	request := acp.PromptParams{
		SessionID: d.agent.session, Prompt: []acp.Content{}, Meta: map[string]any{acp.MetaTurn: strconv.Itoa(t.message)},
	}
	explain := func(text string) {
		if text != "" {
			request.Prompt = append(request.Prompt, explanation(text))
		}
	}
	if d.look(func(h *history) bool { return h.sessionTurns == 1 }) {
		explain(d.instructions())
		if d.Doc.Replay && (d.agent.lostSession || !d.agent.can.Replays()) {
			explain(d.replayed())
		}
	}
	ignored := t.resumed && d.agent.remembers() // the agent continues without a prompt, and ignores this one
	repeated := t.resumed && !ignored
	if repeated {
		d.Notice("The session was interrupted and restarted. The agent was asked to continue its work on this message.")
	}
	if d.agent.lostSession {
		transcript, err := d.transcript(t)
		if err != nil {
			return request, err
		}
		explain(transcript)
		d.agent.lostSession = false
	}
	if !ignored {
		explain(d.preface)
		d.preface = ""
	}
	if repeated {
		explain(interrupted)
	}
	request.Prompt = append(request.Prompt, d.content(ctx, d.agent, message)...)
	if repeated {
		later, err := d.deliveredMessages(ctx)
		if err != nil {
			return request, err
		}
		request.Prompt = append(request.Prompt, later...)
	}
	if len(request.Prompt) == 0 {
		request.Prompt = append(request.Prompt, *acp.Text(continues))
	}
	return request, ctx.Err() // if ctx has ended, images may be missing
}

// explanation returns a block that is not part of the user's message.
func explanation(text string) acp.Content {
	return acp.Content{Type: "text", Text: text, Meta: acp.Meta{acp.MetaContext: true}}
}

// content returns the text and the images of a message. If the user resumed the agent without a
// message, the text is "Continue.".
func (d *Driver) content(ctx context.Context, agent *agentProcess, message *session.Event) (blocks []acp.Content) {
	text := message.Text()
	if message.Action != session.ActionMessage {
		text = continues
	}
	if text != "" {
		blocks = append(blocks, *acp.Text(text))
	}
	return append(blocks, d.images(ctx, agent, imagesOf(message))...)
}

func (d *Driver) event(id int) (*session.Event, error) {
	line, err := d.Journal.Line(id)
	if err != nil {
		return nil, err
	}
	event, err := session.ParseEvent(line)
	return &event, err
}

func imagesOf(message *session.Event) []string {
	var images []string
	list, _ := message.Args["image_urls"].([]any)
	for _, item := range list {
		if address, ok := item.(string); ok {
			images = append(images, address)
		}
	}
	return images
}

// transcript returns the history for an agent that lost its session. The history contains the
// earlier turns and, if the current turn was interrupted, the actions of that turn. It contains
// neither waiting messages nor messages that reached the agent during the current turn.
func (d *Driver) transcript(t task) (string, error) {
	var lines []string
	d.mu.Lock()
	left := slices.Concat(d.history.waiting, d.history.delivered)
	d.mu.Unlock()
	err := d.Journal.Events(0, func(e *session.Event) bool {
		if e.IsUserMessage() && (slices.Contains(left, e.ID) || e.ID == t.message && !t.resumed) {
			return true
		}
		if line := TranscriptLine(e); line != "" {
			lines = append(lines, line)
		}
		return true
	})
	if err != nil || len(lines) == 0 {
		return "", err
	}
	size := 0
	first := len(lines)
	for first > 0 && size+len(lines[first-1]) < maxTranscript {
		first--
		size += len(lines[first])
	}
	text := strings.Join(lines[first:], "\n")
	if first > 0 {
		text = "[the beginning is left out]\n" + text
	}
	return "This is the history of this session so far, which you do not remember:\n\n" + text, nil
}

// maxTranscriptLine bounds each text in a transcript, in bytes.
const maxTranscriptLine = 2 << 10

// TranscriptLine describes an event to the agent. It returns an empty string for an event that the
// agent does not need.
func TranscriptLine(e *session.Event) string {
	short := func(text string) string { return shortened(text, maxTranscriptLine) }
	switch {
	case e.IsUserMessage():
		return "User: " + short(e.Text())
	case e.Observation == session.ObservedNotice:
		return "Notice: " + short(e.Message)
	case e.Action == session.ActionMessage:
		return "You: " + short(e.Text())
	case e.Action == session.ActionRun:
		command, _ := e.Args["command"].(string)
		return "You ran: " + short(command)
	case e.ToolCall != nil && e.Action != "":
		return "You did: " + e.Action + " " + short(e.Message)
	case e.ToolCall != nil && e.Content != nil && e.Observation != session.ObservedState:
		return "Result: " + short(*e.Content)
	}
	return ""
}
