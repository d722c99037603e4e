package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
	"github.com/parley-dev/parley/hack/local/cluster"
)

// A kubelet truncates termination messages to this length.
const maxTerminationMessage = 4096

// runOnce runs the session's process until it exits or the pod's context ends. It returns the state
// in which the process terminated.
func (r *podRun) runOnce() *corev1.ContainerStateTerminated {
	_ = os.Remove(r.terminationLog())
	started := metav1.Now()
	cmd, err := r.startProcess()
	if err != nil {
		return &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: started,
			FinishedAt: metav1.Now()}
	}
	r.seen.phase = corev1.PodRunning
	r.seen.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
	r.report()

	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState holds the exit status
		close(exited)
	}()
	health, stopProbes := context.WithCancel(r.ctx)
	unhealthy := make(chan struct{})
	go func() {
		defer close(unhealthy)
		r.probe(health)
	}()
	reason := ""
	select {
	case <-exited:
	case <-r.ctx.Done():
		r.terminate(cmd, r.why().grace, exited)
	case <-unhealthy:
		reason = "Unhealthy"
		r.terminate(cmd, stopGrace, exited)
	}
	stopProbes()
	<-unhealthy
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	Kill(r.node.podDir(r.pod))
	return r.ending(cmd.ProcessState.Sys().(syscall.WaitStatus), reason, started)
}

func (r *podRun) ending(status syscall.WaitStatus, reason string,
	started metav1.Time) *corev1.ContainerStateTerminated {
	end := &corev1.ContainerStateTerminated{Reason: reason, StartedAt: started, FinishedAt: metav1.Now()}
	end.ExitCode = int32(status.ExitStatus())
	if status.Signaled() {
		end.ExitCode = 128 + int32(status.Signal())
	}
	switch {
	case reason != "" && end.ExitCode == 0:
		end.ExitCode = 137 // the node killed it, so its own exit code does not count
	case reason == "" && end.ExitCode == 0:
		end.Reason = "Completed"
	case reason == "":
		end.Reason = "Error"
	}
	if message, err := os.ReadFile(r.terminationLog()); err == nil {
		end.Message = string(message[max(0, len(message)-maxTerminationMessage):])
	}
	return end
}

func (r *podRun) terminate(cmd *exec.Cmd, grace time.Duration, exited <-chan struct{}) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-exited:
		return
	case <-time.After(grace):
	case <-r.node.force:
	}
	_ = cmd.Process.Kill()
	<-exited
}

func (r *podRun) startProcess() (*exec.Cmd, error) {
	container := r.pod.Spec.Containers[0]
	log, err := r.openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	cmd := exec.Command(r.node.Program, append([]string{supervise.FromEnvironment}, container.Command[1:]...)...)
	cmd.Dir = r.node.localPath(r.pod, container.WorkingDir)
	if cmd.Env, err = r.environment(); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cluster.StartOnLastingThread(cmd); err != nil {
		return nil, err
	}
	return cmd, nil
}

// openLog opens the pod's log. A restarted process appends to the log of its pod.
func (r *podRun) openLog() (*os.File, error) {
	path := r.node.logFile(r.pod.Namespace, r.pod.Name)
	if r.seen.restarts == 0 {
		return cluster.RotateLog(path)
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

func (r *podRun) terminationLog() string {
	return filepath.Join(r.node.podDir(r.pod), "termination-log")
}

// environment returns the container's variables, with local paths in place of container paths. Of
// the node's own environment, the process gets only PATH.
func (r *podRun) environment() ([]string, error) {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOSTNAME=" + r.pod.Name,
		// The pod's directory may be inside a Git checkout. Git must not find that checkout.
		"GIT_CEILING_DIRECTORIES=" + r.node.podDir(r.pod),
		fmt.Sprintf("PARLEY_BIND_ADDRESS=%s:%d", r.seen.address, session.Port),
		"PARLEY_TERMINATION_LOG=" + r.terminationLog(),
		"PARLEY_SESSION_DIR=" + r.node.localPath(r.pod, session.Dir),
		"PARLEY_WORKSPACE=" + r.node.localPath(r.pod, session.WorkspaceDir),
		"PARLEY_REPLAY_DIR=" + r.node.localPath(r.pod, session.ReplayDir),
		"PARLEY_IMAGES_DIR=" + r.node.localPath(r.pod, session.ImagesDir),
	}
	secrets := map[string]*corev1.Secret{}
	for _, e := range r.pod.Spec.Containers[0].Env {
		value := r.node.localPath(r.pod, e.Value)
		if e.ValueFrom != nil {
			secret, err := r.secretValue(e.ValueFrom.SecretKeyRef, secrets)
			if err != nil {
				return nil, fmt.Errorf("variable %s: %w", e.Name, err)
			}
			value = string(secret)
		}
		env = append(env, e.Name+"="+value)
	}
	return env, nil
}

// secretValue returns the value of a key of a Secret. It reads each Secret only one time and stores
// it in cache.
func (r *podRun) secretValue(ref *corev1.SecretKeySelector, cache map[string]*corev1.Secret) ([]byte, error) {
	if cache[ref.Name] == nil {
		secret, err := r.node.Client.CoreV1().Secrets(r.pod.Namespace).Get(r.ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		cache[ref.Name] = secret
	}
	value, found := cache[ref.Name].Data[ref.Key]
	if !found {
		return nil, fmt.Errorf("the Secret %s has no key %s", ref.Name, ref.Key)
	}
	return value, nil
}

// Kill kills the processes of the sessions whose pod directories are in dir, and returns the number
// of killed processes. It finds a process by its variable PARLEY_SESSION_DIR, because a process can
// leave its group. Other variables would also match a developer's shell or editor.
func Kill(dir string) (killed int) {
	prefix := []byte("PARLEY_SESSION_DIR=" + dir + "/")
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		content, err := os.ReadFile(file)
		ofSession := slices.ContainsFunc(bytes.Split(content, []byte{0}),
			func(variable []byte) bool { return bytes.HasPrefix(variable, prefix) })
		if err != nil || !ofSession {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && pid != os.Getpid() &&
			syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}
