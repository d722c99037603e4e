// Package status computes the health of Parley's objects from their conditions, with the rules of
// kstatus. A test in hack/test/gitops compares the results with kstatus.
package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Status is the health of an object.
type Status string

// Values of kstatus.
const (
	InProgressStatus  Status = "InProgress"
	FailedStatus      Status = "Failed"
	CurrentStatus     Status = "Current"
	TerminatingStatus Status = "Terminating"
)

// Compute returns the health of a custom resource.
func Compute(object *unstructured.Unstructured) Status {
	observed, found, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	values := map[string]string{}
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		kind, _ := fields["type"].(string)
		values[kind], _ = fields["status"].(string)
	}
	ready, hasReady := values["Ready"]
	switch {
	case object.GetDeletionTimestamp() != nil:
		return TerminatingStatus
	case found && observed != object.GetGeneration():
		return InProgressStatus
	case values["Reconciling"] == string(metav1.ConditionTrue):
		return InProgressStatus
	case values["Stalled"] == string(metav1.ConditionTrue):
		return FailedStatus
	case hasReady && ready != string(metav1.ConditionTrue):
		return InProgressStatus
	}
	return CurrentStatus
}
