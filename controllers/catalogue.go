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
)

// agent finds the entry of the catalogue that the settings name or, if they name none, the default
// one; nil if there is none. A mistake in another entry does not matter.
func (g *gatherer) agent(ctx context.Context, settings *v1alpha1.UserSettingsSpec) (*session.Agent, *lifecycle.Blocker,
	error) {
	catalogue, err := g.operatorConfigMap(ctx, g.options.AgentsConfigMap)
	if err != nil {
		return nil, nil, fmt.Errorf("read the agent catalogue: %w", err)
	}
	name := ptr.Deref(settings.Agent, session.DefaultAgent)
	text, found := catalogue[name]
	switch {
	case !found && settings.Agent == nil:
		return nil, nil, nil
	case !found:
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonAgentNotFound, "spec.agent: %s is not in the agent catalogue",
			name), nil
	}
	agents, err := session.ParseCatalogue(map[string]string{name: text})
	if err != nil {
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonAgentNotFound, "spec.agent: the entry in the agent catalogue is "+
			"not valid: %v", err), nil
	}
	return ptr.To(agents[name]), nil, nil
}

// models are the prices of models. A mistake among them stops only a session that has a budget.
func (g *gatherer) models(ctx context.Context, settings *v1alpha1.UserSettingsSpec) (session.Models,
	*lifecycle.Blocker, error) {
	prices, err := g.operatorConfigMap(ctx, g.options.ModelsConfigMap)
	if err != nil {
		return nil, nil, fmt.Errorf("read the prices of models: %w", err)
	}
	models, invalid := session.ParseModels(prices)
	if invalid != nil && settings.MaxBudgetPerTask != nil {
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonModelsInvalid, "spec.maxBudgetPerTask: the ConfigMap %s is not "+
			"valid: %v", g.options.ModelsConfigMap, invalid), nil
	}
	return models, nil, nil
}

// operatorConfigMap is the data of a ConfigMap in the operator's namespace; nil if there is none.
func (g *gatherer) operatorConfigMap(ctx context.Context, name string) (map[string]string, error) {
	configMap, err := operatorObject(ctx, g, "ConfigMap", name, &corev1.ConfigMap{})
	return configMap.Data, client.IgnoreNotFound(err)
}
