package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

const (
	// workTime is the duration of a session that ends by itself.
	workTime = 300 * time.Millisecond
	// Sessions with this prefix end by themselves.
	oneShotPrefix = "once-"
)

// startKubelet starts a fake kubelet. It reports sessions as running, and some of them as completed
// after workTime. With a warm pool, it also answers the Bind requests to warm pods.
func startKubelet(ctx context.Context, c client.WithWatch, o options, bound *binds) (*fakekubelet.Kubelet, error) {
	k := fakekubelet.Options{Client: c, Node: "stub", Pods: ofSessions, Workers: 4, PodIP: "127.0.0.1", EndFirst: true,
		Lifetime: bound.lifetime}
	if o.pool > 0 {
		k.Warm = &fakekubelet.WarmPods{Delay: bindDelay, Answer: bound.answer, Conflict: bound.record}
	}
	return fakekubelet.Run(ctx, k)
}

var ofSessions = client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
	v1alpha1.LabelComponent: v1alpha1.ComponentSession}

// uidOf returns the UID of the Conversation that owns an object, or an empty UID.
func uidOf(object metav1.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == "Conversation" {
		return owner.UID
	}
	return ""
}
