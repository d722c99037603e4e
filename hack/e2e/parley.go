package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
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

// Classes beside the default one.
const (
	// scratchClass gives no volume.
	scratchClass = "scratch"
	// plainClass gives nothing, so that sessions run in Parley's own image.
	plainClass = "plain"
)

// makeClasses has sessions run in the image that is on the node: what the shipped class names cannot be pulled here.
func (n *inside) makeClasses(ctx context.Context) error {
	image := &v1alpha1.SessionImages{Default: ptr.To(debianImage)}
	shipped := &v1alpha1.SessionClass{}
	if err := n.client.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultSessionClass}, shipped); err != nil {
		return err
	}
	shipped.Spec.Images = image
	if err := n.client.Update(ctx, shipped); err != nil {
		return err
	}
	for name, spec := range map[string]v1alpha1.SessionClassSpec{scratchClass: {Images: image}, plainClass: {}} {
		if err := n.client.Create(ctx, &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}); err != nil {
			return err
		}
	}
	return nil
}

// ofClass asks for a session of a class.
func ofClass(name string) func(*v1alpha1.ConversationSpec) {
	return func(s *v1alpha1.ConversationSpec) { s.SessionClassName = &name }
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
