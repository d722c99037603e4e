package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/launch"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

const modelTimeout = 2 * time.Second

func modelAtStart(doc *session.Document, key string) session.ModelSettings {
	base := ptr.Deref(doc.Settings.LLMBaseURL, "")
	return session.ModelSettings{Model: qualified(ptr.Deref(doc.Settings.LLMModel, ""), base), BaseURL: base, Key: key}
}

// qualified adds the provider to a well-known model name. If a base URL is set, the name stays
// unchanged, because that endpoint has its own names.
func qualified(name, baseURL string) string {
	if provider := v1alpha1.ModelProvider(name); provider != "" && baseURL == "" {
		return provider + "/" + name
	}
	return name
}

func (s *run) noModel() bool {
	return driver.HasAgent(s.doc) && s.doc.Agent.NeedsModel && get(s, &s.llm).Model == ""
}

// setModel sets the model in the agent's input. The reasoning effort and the temperature come from
// the user's settings. If the user has not set them, they come from the model's entry in
// doc.Models.
func setModel(input *session.AgentInput, doc *session.Document, name string) {
	input.Model, input.ModelName = name, name[strings.Index(name, "/")+1:]
	known := modelproxy.Find(doc.Models, name)
	input.ContextWindow = session.Count(known.ContextWindow)
	input.ReasoningEffort = ptr.Deref(doc.Settings.LLMReasoningEffort, known.ReasoningEffort)
	input.Temperature = ptr.Deref(doc.Settings.LLMTemperature, string(known.Temperature))
}

// refreshModel returns a function that applies changed model settings between two turns. That
// function returns nil if the settings are unchanged or the archive does not respond.
func (s *run) refreshModel(input session.AgentInput) func(context.Context) *driver.ModelChange {
	return func(ctx context.Context) *driver.ModelChange {
		changed := s.changedModel(ctx)
		if changed == nil {
			return nil
		}
		before := get(s, &s.llm)
		s.store.Add(changed.Key)
		if err := s.model.SetModel(changed.BaseURL, changed.Model, changed.Key); err != nil {
			s.log.Error("the changed model cannot be used", "error", err)
		}
		s.set(func() { s.llm = *changed })
		setModel(&input, s.doc, changed.Model)
		change := &driver.ModelChange{Input: input, Env: launch.Environment(s.env.children(), s.doc, s.store, input),
			Restart: changed.Model != before.Model, Revision: changed.Revision,
			Notice: "The model is now " + cmp.Or(changed.Model, "unset") + "."}
		if !change.Restart {
			change.Notice = "The endpoint or the API key of the model changed."
		}
		s.log.Info("the model settings changed", "model", changed.Model, "restart", change.Restart)
		return change
	}
}

// changedModel returns the archived model settings if they differ from the current settings.
func (s *run) changedModel(ctx context.Context) *session.ModelSettings {
	if s.archive == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, modelTimeout)
	defer cancel()
	sealed, err := s.archive.Model(ctx)
	if err != nil && !errors.Is(err, handover.ErrGone) {
		s.log.Warn("cannot check whether the model changed; the session keeps its model", "error", err)
	}
	if err != nil || sealed == nil {
		return nil
	}
	changed, err := session.OpenModel(s.store.Key(session.KeyFile), s.doc.UID, sealed)
	if err != nil {
		s.log.Info("the archived model settings are ignored: they are for a different start of the session")
		return nil
	}
	changed.Key, changed.Model = strings.TrimSpace(changed.Key), qualified(changed.Model, changed.BaseURL)
	current := get(s, &s.llm)
	if current.Model == changed.Model && current.BaseURL == changed.BaseURL && current.Key == changed.Key {
		return nil // only the version of the Secret changed
	}
	return &changed
}
