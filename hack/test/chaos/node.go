package main

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

const (
	// workTime is the duration of a session that ends by itself.
	workTime = 300 * time.Millisecond
	// once is the name prefix of sessions that end by themselves.
	once = "once-"
)

// startKubelet reports sessions as running, and some of them as completed.
func startKubelet(ctx context.Context, c client.WithWatch) (*fakekubelet.Kubelet, error) {
	return fakekubelet.Run(ctx, fakekubelet.Options{
		Client: c, Node: "stub", Pods: ofSessions, Workers: 4, PodIP: "127.0.0.1", EndFirst: true,
		Lifetime: func(pod *corev1.Pod) (time.Duration, string) {
			if strings.HasPrefix(pod.Name, once) {
				return workTime, `{"reason":"Completed","message":"done"}`
			}
			return 0, ""
		},
	})
}

var ofSessions = client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
	v1alpha1.LabelComponent: v1alpha1.ComponentSession}

// uidOf returns the UID of the Conversation that owns an object, or nothing.
func uidOf(object metav1.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == "Conversation" {
		return owner.UID
	}
	return ""
}
