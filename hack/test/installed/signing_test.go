package installed

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
)

// If a pod starts before its key exists, it gets the key up to 90 seconds later. Until then, the
// archive refuses events, and nobody can watch sessions. So the manifests must make the pods wait
// for the key.
func TestProcessesDoNotStartWithoutTheirSigningKey(t *testing.T) {
	needs := map[string]bool{}
	for _, object := range kustomized(t, map[string]string{".": "resources: [CONFIG/default]"}) {
		if object.GetKind() != "Deployment" {
			continue
		}
		var deployment appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
			t.Fatal(err)
		}
		for _, volume := range deployment.Spec.Template.Spec.Volumes {
			if volume.Secret == nil || volume.Secret.SecretName != session.SigningSecret {
				continue
			}
			// The manifests contain the Secret without keys. The existence of the Secret is therefore not
			// enough: a kubelet waits for a key only if the volume lists this key in items.
			needs[deployment.Name] = !ptr.Deref(volume.Secret.Optional, false) && len(volume.Secret.Items) > 0
		}
	}
	for _, name := range []string{"parley-facade", "parley-archive"} {
		if !needs[name] {
			t.Errorf("%s starts before the key exists", name)
		}
	}
}
