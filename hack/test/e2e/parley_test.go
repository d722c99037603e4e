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

// part is a label selector for all installed objects except the CRDs.
const part = "app.kubernetes.io/part-of=parley"

// installParley applies install.yaml one time, as docs/install.md says.
func (n *inside) installParley(ctx context.Context) error {
	_, err := n.kubectl(ctx, "apply", "--server-side", "--filename="+filepath.Join(n.dist, "install.yaml"))
	return err
}

// uninstallParley deletes the installed objects, but not the CRDs and the objects of users.
func (n *inside) uninstallParley(ctx context.Context) error {
	_, err := n.kubectl(ctx, "delete", "--filename="+filepath.Join(n.dist, "install.yaml"), "--selector="+part,
		"--ignore-not-found")
	return err
}

func (n *inside) makeDefaultClass(ctx context.Context) error {
	_, err := n.kubectl(ctx, "create", "--filename="+filepath.Join(n.dist, "default-class.yaml"))
	return err
}

// Classes in addition to the default class.
const (
	scratchClass = "scratch" // without a volume
	// Sessions of mountClass get Parley's programs from an image volume, not from an init
	// container.
	mountClass = "mount"
	// plainClass has an empty spec, so its sessions run in Parley's own image.
	plainClass = "plain"
	// tightClass has a low memory limit, which a session soon exceeds.
	tightClass = "tight"
)

// makeClasses creates all classes except the default class. It also changes the image of the
// default class to an image on the node, because the node cannot pull the shipped image.
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

// makeClass creates a class without a volume. The returned function deletes the class.
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
