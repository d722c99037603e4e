package main

import (
	"context"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/launch"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// resultTimeout bounds the comparison of files at the end of a session.
const resultTimeout = 20 * time.Second

func (s *run) drive(work *workspace.Workspace, local string) (*driver.Driver, error) {
	input, err := agentInput(s.env, s.doc, work, local)
	if err != nil {
		return nil, err
	}
	env := launch.Environment(s.env.children(), s.doc, s.store, input)
	var archive func(context.Context)
	if s.doc.Scratch && s.keeper != nil {
		archive = s.keeper.Flush
	}
	return driver.New(driver.Options{
		Doc: s.doc, Input: input, Env: env, Dir: work.Dir, ToolsURL: local + session.ToolsPath, Journal: s.journal,
		Model:  s.model,
		Output: s.output.Lines, MaskUnfinished: s.store.MaskUnfinished,
		Busy:    s.activity.begin,
		Idle:    func(ctx context.Context) <-chan struct{} { return s.activity.idleFor(ctx, s.doc.IdleTimeout.Duration) },
		Notices: s.notices(),
		Archive: archive, LostRecord: s.lost != "" && s.env.ran,
		Refresh: s.refreshModel(input),
		Ended:   s.ended,
		Cgroups: s.env.Cgroups,
		Log:     s.log,
	})
}

func (s *run) limited(limit modelproxy.Limit) {
	s.log.Warn("the agent reached a limit on model usage", "reason", limit.Message)
	if d := get(s, &s.driver); d != nil {
		d.Limit(limit.TurnID, limit.Message)
	}
}

// unpriced tells the user that a model call was refused. The proxy refuses a call if a budget is
// set and the cost of the call is unknown.
func (s *run) unpriced(reason string) {
	s.log.Warn("a call to the model is refused", "reason", reason)
	if d := get(s, &s.driver); d != nil {
		d.Notice("A call to the model failed: " + reason + ".")
	}
}

func (s *run) result(dir, base string) *v1alpha1.ConversationResult {
	ctx, cancel := context.WithTimeout(context.Background(), resultTimeout)
	defer cancel()
	_, said := get(s, &s.driver).State()
	result := &v1alpha1.ConversationResult{Summary: s.store.Mask(said)}
	if changes, err := workspace.Compare(ctx, dir, base, func() {}); err == nil {
		// The agent chooses the branch name, which may contain a secret.
		result.Commit, result.Branch, result.FilesChanged = changes.Commit, s.store.Mask(changes.Branch),
			int32(len(changes.Files))
		_ = changes.Close()
	}
	result.PullRequest = s.store.Mask(get(s, &s.driver).PullRequest())
	if used := s.usage(); used.Calls > 0 {
		result.InputTokens, result.OutputTokens, result.Cost = used.InputTokens, used.OutputTokens, used.Cost
	}
	if *result == (v1alpha1.ConversationResult{}) {
		return nil
	}
	return result
}

// notices returns a notice for each setting that does not work, and a notice if earlier events are
// lost.
func (s *run) notices() []string {
	var list []string
	if s.lost != "" {
		list = append(list, s.lost)
	}
	doc, settings := s.doc, &s.doc.Settings
	if analyzer := ptr.Deref(settings.SecurityAnalyzer, ""); analyzer != "" && analyzer != driver.AnalyzerLLM &&
		ptr.Deref(settings.ConfirmationMode, false) {
		list = append(list, "The security analyzer "+analyzer+" is unknown: every action waits for your confirmation.")
	}
	if model := s.llm.Model; settings.MaxBudgetPerTask != nil && model != "" && !modelproxy.HasCost(doc.Models, model) {
		list = append(list, "max_budget_per_task is set, but the model "+model+" has no price: its calls will be refused. "+
			"Remove the budget, choose another model, or ask an administrator to add the price (ConfigMap parley-models).")
	}
	if doc.SearchUnavailable {
		list = append(list, "search_api_key is set, but the operator provides no search tool (--search-mcp-url).")
	}
	return list
}
