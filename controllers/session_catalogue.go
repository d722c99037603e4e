package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// catalogueEntry is an agent of the catalogue, or what is wrong with its entry. That hurts nobody
// who names another.
type catalogueEntry struct {
	agent   session.Agent
	invalid *problem
}

// pricedModels are the prices of models, and what is wrong with some of them.
type pricedModels struct {
	models session.Models
	err    error
}

// agent finds the entry of the catalogue that the settings name or, if they name none, the usual
// one; nil if there is none.
func (r *conversationReconciler) agent(ctx context.Context, settings *v1alpha1.UserSettings) (*session.Agent, *problem,
	error) {
	name := ptr.Deref(settings.Spec.Agent, session.DefaultAgent)
	catalogue, err := ofConfigMap(ctx, r, &r.catalogue, r.catalogueKey(), readCatalogue)
	if err != nil {
		return nil, nil, fmt.Errorf("read the agent catalogue: %w", err)
	}
	entry, found := catalogue[name]
	switch {
	case !found && settings.Spec.Agent == nil:
		return nil, nil, nil
	case !found:
		return nil, &problem{v1alpha1.ReasonAgentNotFound, fmt.Sprintf("spec.agent: %s is not in the agent catalogue", name)},
			nil
	case entry.invalid != nil:
		return nil, entry.invalid, nil
	}
	return &entry.agent, nil, nil
}

func readCatalogue(data map[string]string) map[string]catalogueEntry {
	catalogue := make(map[string]catalogueEntry, len(data))
	for name, text := range data {
		agents, err := session.ParseCatalogue(map[string]string{name: text})
		entry := catalogueEntry{agent: agents[name]}
		if err != nil {
			entry.invalid = &problem{v1alpha1.ReasonAgentNotFound, fmt.Sprintf("spec.agent: the entry in the agent catalogue "+
				"is not valid: %v", err)}
		}
		catalogue[name] = entry
	}
	return catalogue
}

// models are the prices of models. A mistake among them stops only a session that has a budget to
// keep.
func (r *conversationReconciler) models(ctx context.Context, settings *v1alpha1.UserSettingsSpec) (session.Models,
	*problem, error) {
	prices, err := ofConfigMap(ctx, r, &r.prices, r.modelsKey(), func(data map[string]string) pricedModels {
		models, err := session.ParseModels(data)
		return pricedModels{models, err}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the prices of models: %w", err)
	}
	if prices.err != nil && settings.MaxBudgetPerTask != nil {
		return nil, &problem{v1alpha1.ReasonModelsInvalid, fmt.Sprintf("spec.maxBudgetPerTask: the ConfigMap %s is not "+
			"valid: %v", r.options.ModelsConfigMap, prices.err)}, nil
	}
	return prices.models, nil, nil
}

// ofConfigMap is what a ConfigMap of the operator's own says. One that is not there says nothing.
func ofConfigMap[T any](ctx context.Context, r *conversationReconciler, held *held[T], name client.ObjectKey,
	parse func(map[string]string) T) (T, error) {
	return held.get(ctx, r.metadata, corev1.SchemeGroupVersion.WithKind("ConfigMap"), name, func() (client.Object, T,
		error) {
		configMap := &corev1.ConfigMap{}
		err := client.IgnoreNotFound(r.live.Get(ctx, name, configMap))
		return configMap, parse(configMap.Data), err
	})
}

func (r *conversationReconciler) modelsKey() client.ObjectKey {
	return client.ObjectKey{Namespace: r.options.Namespace, Name: r.options.ModelsConfigMap}
}

func (r *conversationReconciler) catalogueKey() client.ObjectKey {
	return client.ObjectKey{Namespace: r.options.Namespace, Name: r.options.AgentsConfigMap}
}
