package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const archiveContainer, storeFlag = "archive", "--store="

// namespaceUsage reads the costs in the selected namespace. It runs the archive's program in the
// archive's pod. The argument system is the namespace of this pod. The user needs the right to run
// programs in this pod. With this right, the user could read the whole store of the archive anyway.
func (c *cluster) namespaceUsage(ctx context.Context, system, month string) (*session.SpendUsage, error) {
	var pods corev1.PodList
	labels := client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.ManagedBy, v1alpha1.LabelComponent: "archive"}
	if err := c.List(ctx, &pods, client.InNamespace(system), labels); err != nil {
		return nil, fmt.Errorf("cannot find the archive: %w", err)
	}
	at := slices.IndexFunc(pods.Items, func(pod corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
	})
	if at < 0 {
		return nil, fmt.Errorf("no archive runs in namespace %s: set the archive's namespace with --facade-namespace", system)
	}
	command, err := usageCommand(&pods.Items[at], c.namespace, month)
	if err != nil {
		return nil, err
	}
	output, err := c.exec(ctx, &pods.Items[at], command)
	if err != nil {
		return nil, err
	}
	usage := &session.SpendUsage{}
	if err := json.Unmarshal(output, usage); err != nil {
		return nil, fmt.Errorf("the archive printed invalid costs: %w", err)
	}
	return usage, nil
}

// usageCommand returns the command that prints the costs in a namespace. It uses the store of the
// running archive.
func usageCommand(archive *corev1.Pod, namespace, month string) ([]string, error) {
	for _, container := range archive.Spec.Containers {
		at := slices.IndexFunc(container.Args, func(arg string) bool { return strings.HasPrefix(arg, storeFlag) })
		if container.Name == archiveContainer && at >= 0 {
			return []string{"/archive", container.Args[at], "--usage=" + namespace, "--month=" + month}, nil
		}
	}
	return nil, fmt.Errorf("pod %s has no container %s with the flag %s", archive.Name, archiveContainer, storeFlag)
}

// exec runs a command in the archive's container, over a WebSocket or, for older API servers, SPDY.
func (c *cluster) exec(ctx context.Context, pod *corev1.Pod, command []string) ([]byte, error) {
	target := c.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{Container: archiveContainer, Command: command,
		Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	websocket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, target.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, target)
	if err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, err
	}
	var output, problem bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &output, Stderr: &problem})
	if err != nil {
		lines := strings.Split(strings.TrimSpace(problem.String()), "\n")
		return nil, fmt.Errorf("cannot read the costs in pod %s: %w", pod.Name, errors.Join(err,
			errors.New(lines[len(lines)-1])))
	}
	return output.Bytes(), nil
}
