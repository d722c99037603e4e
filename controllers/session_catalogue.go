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

// agent finds the entry of the catalogue that the settings name or, if they name none, the usual one; nil if there is none. Only
// that entry is read, so that a mistake in another hurts nobody else.
func (r *conversationReconciler) agent(ctx context.Context, settings *v1alpha1.UserSettings) (*session.Agent, *problem, error) {
	name := ptr.Deref(settings.Spec.Agent, session.DefaultAgent)
	catalogue, err := r.ownConfigMap(ctx, &r.catalogue, r.catalogueKey())
	if err != nil {
		return nil, nil, fmt.Errorf("read the agent catalogue: %w", err)
	}
	entry, found := catalogue.Data[name]
	switch {
	case !found && settings.Spec.Agent == nil:
		return nil, nil, nil
	case !found:
		return nil, &problem{v1alpha1.ReasonAgentNotFound, fmt.Sprintf("spec.agent: %s is not in the agent catalogue", name)}, nil
	}
	agents, err := session.ParseCatalogue(map[string]string{name: entry})
	if err != nil {
		return nil, &problem{v1alpha1.ReasonAgentNotFound, fmt.Sprintf("spec.agent: the entry in the agent catalogue is not valid: %v", err)}, nil
	}
	agent := agents[name]
	return &agent, nil, nil
}

// models are the prices of models. A mistake among them stops only a session that has a budget to keep.
func (r *conversationReconciler) models(ctx context.Context, settings *v1alpha1.UserSettingsSpec) (session.Models, *problem, error) {
	prices, err := r.ownConfigMap(ctx, &r.prices, r.modelsKey())
	if err != nil {
		return nil, nil, fmt.Errorf("read the prices of models: %w", err)
	}
	models, err := session.ParseModels(prices.Data)
	if err != nil && settings.MaxBudgetPerTask != nil {
		return nil, &problem{v1alpha1.ReasonModelsInvalid, fmt.Sprintf("spec.maxBudgetPerTask: the ConfigMap %s is not valid: %v", r.options.ModelsConfigMap, err)}, nil
	}
	return models, nil, nil
}

// ownConfigMap is one of the operator's own; empty if it is not there.
func (r *conversationReconciler) ownConfigMap(ctx context.Context, held *held[*corev1.ConfigMap], name client.ObjectKey) (*corev1.ConfigMap, error) {
	return held.get(ctx, r.metadata, corev1.SchemeGroupVersion.WithKind("ConfigMap"), name, func() (*corev1.ConfigMap, error) {
		configMap := &corev1.ConfigMap{}
		return configMap, client.IgnoreNotFound(r.live.Get(ctx, name, configMap))
	})
}

func (r *conversationReconciler) modelsKey() client.ObjectKey {
	return client.ObjectKey{Namespace: r.options.Namespace, Name: r.options.ModelsConfigMap}
}

func (r *conversationReconciler) catalogueKey() client.ObjectKey {
	return client.ObjectKey{Namespace: r.options.Namespace, Name: r.options.AgentsConfigMap}
}
