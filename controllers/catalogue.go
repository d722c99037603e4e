package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// catalogueAgent is an entry of the agent catalogue. An invalid entry blocks the sessions that name
// it.
type catalogueAgent struct {
	agent   *session.Agent
	blocker *lifecycle.Blocker
}

func parseAgents(catalogue *corev1.ConfigMap) map[string]catalogueAgent {
	agents := make(map[string]catalogueAgent, len(catalogue.Data))
	for name, text := range catalogue.Data {
		parsed, err := session.ParseCatalogue(map[string]string{name: text})
		if err != nil {
			agents[name] = catalogueAgent{blocker: lifecycle.NewBlocker(v1alpha1.ReasonAgentNotFound,
				"spec.agent: the entry of agent %s in the agent catalogue is invalid: %v", name, err)}
			continue
		}
		agents[name] = catalogueAgent{agent: ptr.To(parsed[name])}
	}
	return agents
}

// agent returns the catalogue entry of the agent in the settings. If the settings contain no agent,
// it returns the default entry, or nil if the catalogue has no default entry.
func (g *gatherer) agent(ctx context.Context, settings *v1alpha1.UserSettingsSpec) (*session.Agent, *lifecycle.Blocker,
	error) {
	catalogue, err := operatorObject(ctx, g, "ConfigMap", g.options.AgentsConfigMap, &corev1.ConfigMap{}, parseAgents)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read the agent catalogue: %w", err)
	}
	name := ptr.Deref(settings.Agent, session.DefaultAgent)
	entry, found := catalogue[name]
	switch {
	case !found && settings.Agent == nil:
		return nil, nil, nil
	case !found:
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonAgentNotFound, "spec.agent: %s is not in the agent catalogue",
			name), nil
	}
	return entry.agent, entry.blocker, nil
}

type modelPrices struct {
	models  session.Models
	invalid error
}

func parsePrices(prices *corev1.ConfigMap) modelPrices {
	models, err := session.ParseModels(prices.Data)
	return modelPrices{models, err}
}

// models returns the prices of models. An invalid price blocks only sessions with a budget or a
// spending limit.
func (g *gatherer) models(ctx context.Context, settings *v1alpha1.UserSettingsSpec, class objects.Class) (
	session.Models, *lifecycle.Blocker, error) {
	prices, err := operatorObject(ctx, g, "ConfigMap", g.options.ModelsConfigMap, &corev1.ConfigMap{}, parsePrices)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read the model prices: %w", err)
	}
	bound := "maxBudgetPerTask of the UserSettings or of SessionClass " + class.Name
	if class.Spec.Spend != nil {
		bound = "the spending limits of SessionClass " + class.Name
	}
	if prices.invalid != nil && (settings.MaxBudgetPerTask != nil || class.Spec.Spend != nil) {
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonModelsInvalid, "%s cannot be enforced: ConfigMap %s is invalid: %v",
			bound, g.options.ModelsConfigMap, prices.invalid), nil
	}
	return prices.models, nil, nil
}
