package main

import (
	"context"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// sessionPods returns a subject that creates a session's Secret and pod, as a script without an
// operator would. Both come from the golden files of the manager's tests.
func (b *bed) sessionPods() (subject, error) {
	var model corev1.Pod
	text, err := os.ReadFile(testenv.Path("controllers", "objects", "testdata", "pod-plain.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &model)
	}
	if err != nil {
		return subject{}, err
	}
	document, err := os.ReadFile(testenv.Path("controllers", "objects", "testdata", "document.yaml"))
	if err == nil {
		document, err = yaml.YAMLToJSON(document)
	}
	if err != nil {
		return subject{}, err
	}
	core := b.userPods.CoreV1()
	return b.podsThat(sessionPods, "session", func(ctx context.Context, name, app string) error {
		pod := model.DeepCopy()
		pod.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: pod.Labels}
		pod.Labels["app"] = app
		pod.Spec.Hostname = name
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name},
			Data: map[string][]byte{session.DocumentFile: document}}
		for i := range pod.Spec.Containers[0].Env {
			if from := pod.Spec.Containers[0].Env[i].ValueFrom; from != nil {
				from.SecretKeyRef.Name = name
				secret.Data[from.SecretKeyRef.Key] = []byte("none")
			}
		}
		for i := range pod.Spec.Volumes {
			if from := pod.Spec.Volumes[i].Secret; from != nil {
				from.SecretName = name
			}
		}
		if _, err := core.Secrets(benchNamespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := core.Pods(benchNamespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}), nil
}
