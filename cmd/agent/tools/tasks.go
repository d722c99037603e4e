package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

// Tasks is the model's task list, which the user sees.
type Tasks struct {
	list []task
}

type task struct {
	ID     string `json:"id"`
	Title  string `json:"title"`
	Status string `json:"status"`
	Notes  string `json:"notes"`
}

type tasksInput struct {
	Command  string `json:"command"`
	TaskList []task `json:"task_list"`
}

const commandPlan = "plan"

func (t *Tasks) tool() *Tool {
	item := map[string]any{"type": "object", "required": []any{"title", "status"}, "properties": map[string]any{
		"id": text("A name for the task."), "title": text("The work to do."), "notes": text("Details."),
		"status": map[string]any{"type": "string", "enum": []any{"todo", "in_progress", "done"}},
	}}
	return &Tool{
		Tool: llm.Tool{Name: TasksName,
			Description: "Maintain a task list, which the user sees. Use it for work with several steps. The command " +
				"plan writes the whole list, and the command view shows the list. Keep one task in_progress, and set " +
				"it to done as soon as it is finished.",
			Schema: schema([]any{"command"}, map[string]any{
				"command":   map[string]any{"type": "string", "enum": []any{"view", commandPlan}},
				"task_list": map[string]any{"type": "array", "items": item, "description": "For plan: the whole list."},
			})},
		describe: func(json.RawMessage) Description { return Description{Title: "Task list", Kind: kindThink} },
		run:      t.run,
	}
}

func (t *Tasks) run(_ context.Context, input json.RawMessage) Outcome {
	var in tasksInput
	if err := json.Unmarshal(input, &in); err != nil {
		return failed("The input does not match the schema: %v", err)
	}
	if in.Command != commandPlan {
		return Outcome{Text: t.text()}
	}
	t.list = in.TaskList
	outcome := Outcome{Text: "The list was saved.\n" + t.text(), Plan: []acp.PlanEntry{}}
	for _, task := range t.list {
		status := map[string]string{"in_progress": acp.InProgress, "done": acp.Completed}[task.Status]
		if status == "" {
			status = acp.Pending
		}
		outcome.Plan = append(outcome.Plan, acp.PlanEntry{Content: task.Title, Priority: "medium", Status: status})
	}
	return outcome
}

// Restore sets the list from the input of an earlier call.
func (t *Tasks) Restore(input string) {
	var in tasksInput
	if json.Unmarshal([]byte(input), &in) == nil && in.Command == commandPlan {
		t.list = in.TaskList
	}
}

func (t *Tasks) text() string {
	if len(t.list) == 0 {
		return "There are no tasks."
	}
	var b strings.Builder
	for i, task := range t.list {
		fmt.Fprintf(&b, "%d. [%s] %s", i+1, task.Status, task.Title)
		if task.Notes != "" {
			fmt.Fprintf(&b, " (%s)", task.Notes)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}
