package objects

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// Service returns the headless Service that gives the sessions of a namespace their DNS names.
func Service(namespace string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: sharedMeta(namespace, lifecycle.ServiceName),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Selector:  sessionSelector(),
			Ports: []corev1.ServicePort{{Name: "session", Port: session.Port, TargetPort: intstr.FromInt32(session.Port),
				Protocol: corev1.ProtocolTCP}},
		},
	}
}

func sharedMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: sessionSelector()}
}

func sessionSelector() map[string]string {
	return map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelComponent: v1alpha1.ComponentSession}
}
