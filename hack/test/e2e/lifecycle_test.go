package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func runtimeMounted(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "mounted", ofClass(mountClass))
	if pod := t.podOf(c); len(pod.Spec.InitContainers) > 0 {
		t.Errorf("its pod has the init container %s", pod.Spec.InitContainers[0].Name)
	}
	if got := t.shell(c, "rm /run/parley/bin/runtime 2>&1 || true"); !strings.Contains(got, "Read-only") {
		t.Errorf("a process in the session can change its programs: %s", got)
	}
}

func runtimeKilled(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "killed", nil)
	uid := t.podOf(c).UID
	first := firstProcess(uid)
	if first == 0 {
		t.Fatalf("cannot find the first process of the session")
	}
	t.must(syscall.Kill(first, syscall.SIGKILL))
	t.retry(func(ctx context.Context) error {
		pod := &corev1.Pod{}
		if err := t.client.Get(ctx, podKey(c), pod); err != nil {
			return err
		}
		s := pod.Status.ContainerStatuses[0]
		if s.RestartCount != 1 || !s.Ready || s.LastTerminationState.Terminated == nil {
			return fmt.Errorf("the container's status is %+v", s)
		}
		if code := s.LastTerminationState.Terminated.ExitCode; code != 137 {
			t.Errorf("the killed runtime ended with status %d", code)
		}
		return nil
	})
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if pod := t.podOf(c); pod.UID != uid {
		t.Errorf("the pod was recreated, too")
	}
}

func killedForMemory(t *t) {
	ns := t.newNamespace()
	t.settings(ns, func(s *v1alpha1.UserSettingsSpec) {
		s.SandboxRuntimeContainerImage = ptr.To(hungryImage)
	})
	c := t.conversation(ns, "hungry", ofClass(tightClass))
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if !strings.Contains(c.Status.Message, "OOMKilled") || c.Status.LastRestart != "OOMKilled" {
		t.Errorf("the message does not name memory as the cause: %s (%s)", c.Status.Message, c.Status.LastRestart)
	}
	if c.Status.Restarts != 6 || c.Status.Attempt > 1 {
		t.Errorf("it took %d restarts in %d attempts", c.Status.Restarts, c.Status.Attempt)
	}
	t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName(c.Name))
	t.Logf("%s", c.Status.Message)
}

func agentKilledForMemory(t *t) {
	ns := t.newNamespace()
	t.addAgent(eater, eaterEntry)
	t.settings(ns, func(s *v1alpha1.UserSettingsSpec) { s.Agent = ptr.To(eater) })
	c := t.conversation(ns, "eats", func(s *v1alpha1.ConversationSpec) {
		ofClass(tightClass)(s)
		s.InitialUserMsg = ptr.To(writerMessage)
	})
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	// If the memory is full, some kernels kill all processes of the container, not only the agent.
	// The session is then restarted, and its work counts as interrupted.
	if !strings.Contains(c.Status.Message, "OOMKilled") && c.Status.LastRestart != "OOMKilled" {
		t.Errorf("the message does not name memory as the cause: %s (%s)", c.Status.Message, c.Status.LastRestart)
	}
	t.Logf("%s", c.Status.Message)
}

func podDeleted(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "kept", useVolume)
	t.shell(c, "echo precious > /workspace/note")
	first := t.podOf(c)
	t.must(t.client.Delete(t.ctx, first))
	t.retry(func(ctx context.Context) error {
		pod := &corev1.Pod{}
		if err := t.client.Get(ctx, podKey(c), pod); err != nil {
			return err
		}
		if pod.UID == first.UID {
			return errors.New("the pod is not recreated")
		}
		return nil
	})
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if got := t.shell(c, "cat /workspace/note"); got != "precious" {
		t.Errorf("the workspace holds %q", got)
	}
	if got := t.file(c, "note"); got != "precious" {
		t.Errorf("the volume holds %q", got)
	}
}

func suspendAndResume(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "pauses", useVolume)
	t.shell(c, "echo precious > /workspace/note")
	t.edit(c, func(s *v1alpha1.ConversationSpec) { s.Suspend = true })
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName("pauses"))
	t.gone(&corev1.Secret{}, ns, "pauses-session")
	t.edit(c, func(s *v1alpha1.ConversationSpec) { s.Suspend = false })
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if got := t.shell(c, "cat /workspace/note"); got != "precious" {
		t.Errorf("the workspace holds %q", got)
	}
}

func idleStop(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "idle", func(s *v1alpha1.ConversationSpec) {
		s.IdleTimeout = &metav1.Duration{Duration: 15 * time.Second}
	})
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonIdle)
	t.gone(&corev1.Secret{}, ns, "idle-session")
}

func startDeadline(t *t) {
	ns := t.newNamespace()
	t.settings(ns, func(s *v1alpha1.UserSettingsSpec) { s.SandboxBaseContainerImage = ptr.To(absentImage) })
	c := t.conversation(ns, "late", nil)
	// The kubelet reports the reason only after its second attempt to pull the image.
	t.retry(func(ctx context.Context) error {
		err := t.client.Get(ctx, client.ObjectKeyFromObject(c), c)
		if err == nil && !strings.Contains(c.Status.Message, "ImagePull") {
			err = fmt.Errorf("the message does not report the problem: %s", c.Status.Message)
		}
		return err
	})
	t.edit(c, func(s *v1alpha1.ConversationSpec) { s.StartDeadline = &metav1.Duration{Duration: time.Second} })
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonStartDeadlineExceeded)
	if !strings.Contains(c.Status.Message, absentImage) || !strings.Contains(c.Status.Message, "ImagePull") {
		t.Errorf("the message does not name the image and its problem: %s", c.Status.Message)
	}
	t.Logf("%s", c.Status.Message)
}

func deletedConversation(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	c := t.running(ns, "goes", useVolume)
	uid, volume := t.podOf(c).UID, t.volumeOf(c)
	t.must(t.client.Delete(t.ctx, c))
	t.gone(c, ns, "goes")
	t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName("goes"))
	t.gone(&corev1.Secret{}, ns, "goes-session")
	t.gone(&corev1.PersistentVolumeClaim{}, ns, "goes-workspace")
	t.gone(&corev1.PersistentVolume{}, "", volume.Name)
	t.retry(func(context.Context) error {
		if left := processesOfPod(uid); len(left) > 0 {
			return fmt.Errorf("processes still run: %v", left)
		}
		if _, err := os.Stat(filepath.Join(t.kubeletDir(), "pods", string(uid))); !os.IsNotExist(err) {
			return errors.New("the pod's directory still exists")
		}
		if _, err := os.Stat(volume.Spec.Local.Path); !os.IsNotExist(err) {
			return errors.New("the volume's directory still exists")
		}
		return nil
	})
}

func (t *t) gone(o client.Object, namespace, name string) {
	t.retry(func(ctx context.Context) error {
		err := t.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
		if err == nil {
			err = fmt.Errorf("%T %s still exists", o, name)
		}
		return client.IgnoreNotFound(err)
	})
}

// processesOfPod returns the processes in the pod's cgroups, without the process "pause" of the pod
// sandbox.
func processesOfPod(uid types.UID) []int {
	var found []int
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		if !strings.Contains(string(content), "pod"+string(uid)) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		var pid int
		if _, err := fmt.Sscan(filepath.Base(filepath.Dir(file)), &pid); err == nil && string(command) != "/pause\x00" {
			found = append(found, pid)
		}
	}
	return found
}

// firstProcess returns the process that has PID 1 in its container.
func firstProcess(uid types.UID) int {
	for _, pid := range processesOfPod(uid) {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(status)) {
			if numbers, found := strings.CutPrefix(line, "NSpid:"); found && strings.HasSuffix(strings.TrimSpace(numbers),
				"\t1") {
				return pid
			}
		}
	}
	return 0
}
