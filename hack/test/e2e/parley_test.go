package e2e

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const parleyNamespace = "parley-system"

// part is the label of all installed objects except the CRDs.
const part = "app.kubernetes.io/part-of=parley"

// installParley applies install.yaml as in docs/install.md. One attempt must suffice.
func (n *inside) installParley(ctx context.Context) error {
	_, err := n.kubectl(ctx, "apply", "--server-side", "--filename="+filepath.Join(n.dist, "install.yaml"))
	return err
}

// uninstallParley keeps the CRDs and users' objects.
func (n *inside) uninstallParley(ctx context.Context) error {
	_, err := n.kubectl(ctx, "delete", "--filename="+filepath.Join(n.dist, "install.yaml"), "--selector="+part,
		"--ignore-not-found")
	return err
}

// makeDefaultClass creates the shipped class.
func (n *inside) makeDefaultClass(ctx context.Context) error {
	_, err := n.kubectl(ctx, "create", "--filename="+filepath.Join(n.dist, "default-class.yaml"))
	return err
}

// Classes besides the default one.
const (
	// scratchClass has no volume.
	scratchClass = "scratch"
	// mountClass mounts Parley's programs.
	mountClass = "mount"
	// plainClass has no settings, so sessions run in Parley's own image.
	plainClass = "plain"
	// tightClass has little memory, so that a session soon runs out of it.
	tightClass = "tight"
)

// makeClasses creates classes with an image that is on the node, because the image of the shipped
// class cannot be pulled here.
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
	mounting := image.DeepCopy()
	mounting.Runtime = v1alpha1.RuntimeMount
	tight := shipped.Spec.DeepCopy()
	tight.Resources = &v1alpha1.SessionResources{Requests: ofMemory("128Mi"), Limits: ofMemory("256Mi")}
	for name, spec := range map[string]v1alpha1.SessionClassSpec{
		scratchClass: {Images: image}, mountClass: {Images: mounting}, plainClass: {}, tightClass: *tight,
	} {
		if err := n.client.Create(ctx, &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: spec}); err != nil {
			return err
		}
	}
	return nil
}

// makeClass creates a class like scratchClass with a change, and returns a function that deletes it.
func (t *t) makeClass(name string, change func(*v1alpha1.SessionClassSpec)) (remove func()) {
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SessionClassSpec{Images: &v1alpha1.SessionImages{Default: ptr.To(debianImage)}}}
	change(&class.Spec)
	t.must(t.client.Create(t.ctx, class))
	return func() {
		if err := t.client.Delete(context.WithoutCancel(t.ctx), class); err != nil {
			t.Errorf("delete SessionClass: %v", err)
		}
	}
}

func ofMemory(amount string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}
}

// ofClass selects a class.
func ofClass(name string) func(*v1alpha1.ConversationSpec) {
	return func(s *v1alpha1.ConversationSpec) { s.SessionClassName = &name }
}

func (n *inside) awaitParley(ctx context.Context) error {
	for _, name := range []string{"parley-manager", "parley-facade", archiveName} {
		if _, err := n.kubectl(ctx, "rollout", "status", "deployment", name, "--namespace="+parleyNamespace,
			"--timeout=3m"); err != nil {
			return err
		}
	}
	return nil
}
