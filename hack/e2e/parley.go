package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const parleyNamespace = "parley-system"

// installParley applies config/default with our image, as an admin would.
func (n *inside) installParley(ctx context.Context) error {
	dir := filepath.Join(runDir, "config")
	if err := os.CopyFS(dir, os.DirFS(n.manifests)); err != nil {
		return err
	}
	if err := setImage(filepath.Join(dir, "default", "kustomization.yaml"), "parley", parleyImage); err != nil {
		return err
	}
	return retry(ctx, func(ctx context.Context) error {
		_, err := n.kubectl(ctx, "apply", "--server-side", "--kustomize", filepath.Join(dir, "default"))
		return err
	})
}

// setImage does what `kustomize edit set image` does, which kubectl has not.
func setImage(file, name, image string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	kustomization := map[string]any{}
	if err := yaml.Unmarshal(content, &kustomization); err != nil {
		return err
	}
	newName, newTag, _ := strings.Cut(image, ":")
	kustomization["images"] = []map[string]string{{"name": name, "newName": newName, "newTag": newTag}}
	if content, err = yaml.Marshal(kustomization); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

func (n *inside) awaitParley(ctx context.Context) error {
	return retry(ctx, func(ctx context.Context) error {
		for _, name := range []string{"parley-manager", "parley-facade"} {
			var d appsv1.Deployment
			if err := n.client.Get(ctx, client.ObjectKey{Namespace: parleyNamespace, Name: name}, &d); err != nil {
				return err
			}
			if d.Status.ReadyReplicas != *d.Spec.Replicas {
				return fmt.Errorf("%d of %d pods of %s are ready", d.Status.ReadyReplicas, *d.Spec.Replicas, name)
			}
		}
		return nil
	})
}
