package controllers

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// These are the priorities of Conversations in the work queue. A changed Conversation has priority
// 0.
const (
	// podPriority is the priority of a Conversation whose pod changed. It is high, so that the
	// manager continues the start of a session before it begins another start. If many sessions
	// start together, the first of them then run early.
	podPriority = 10
	// sharedPriority is the priority of Conversations after a change of an object that many
	// Conversations may use. One change can enqueue thousands of Conversations, and must not delay
	// the starts of other users.
	sharedPriority = -10
)

// withPriority enqueues the requests for a changed object, and gives them this priority. Requests
// for objects that exist when the manager starts get the lowest priority.
func withPriority(priority int, requests handler.MapFunc) handler.Funcs {
	add := func(ctx context.Context, q workQueue, o client.Object, priority int) {
		q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(priorityqueue.AddOpts{Priority: &priority},
			requests(ctx, o)...)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workQueue) {
			if e.IsInInitialList {
				add(ctx, q, e.Object, handler.LowPriority)
				return
			}
			add(ctx, q, e.Object, priority)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workQueue) {
			add(ctx, q, e.ObjectNew, priority)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workQueue) { add(ctx, q, e.Object, priority) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q workQueue) {
			add(ctx, q, e.Object, priority)
		},
	}
}
