package lifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestARestartSaysWhyTheProcessEnded(t *testing.T) {
	for how, ended := range map[string]corev1.ContainerStateTerminated{
		"status 137 (Unresponsive)": {Reason: "Error", ExitCode: 137, Message: `{"reason":"Unresponsive"}`},
		"status 137 (OOMKilled)":    {Reason: "OOMKilled", ExitCode: 137},
		"status 2":                  {Reason: "Error", ExitCode: 2, Message: "a message of somebody's"},
	} {
		pod := podOf(makeConversation("ns", "c")).Sandboxed().Waiting(SessionContainer, "CrashLoopBackOff").Crashed(1, "")
		status := pod.Status.ContainerStatuses[0]
		status.LastTerminationState.Terminated = &ended
		if _, message, _ := containerStep(pod.Pod, status); message != "The session's process ended with "+how+
			" and is started again" {
			t.Errorf("%+v: %s", ended, message)
		}
	}
}
