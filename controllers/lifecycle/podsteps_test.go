package lifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTheRestartMessageNamesTheExitCause(t *testing.T) {
	for how, ended := range map[string]corev1.ContainerStateTerminated{
		"status 137 (Unresponsive)": {Reason: "Error", ExitCode: 137, Message: `{"reason":"Unresponsive"}`},
		"status 137 (OOMKilled)":    {Reason: "OOMKilled", ExitCode: 137},
		"status 2":                  {Reason: "Error", ExitCode: 2, Message: "an unknown message"},
	} {
		pod := podOf(makeConversation("ns", "c")).Sandboxed().Waiting(SessionContainer, "CrashLoopBackOff").Crashed(1, "")
		status := pod.Status.ContainerStatuses[0]
		status.LastTerminationState.Terminated = &ended
		if _, message, _ := containerStep(pod.Pod, status); message != "The session's process exited with "+how+
			" and is being restarted" {
			t.Errorf("%+v: %s", ended, message)
		}
	}
}
