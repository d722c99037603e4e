package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/parley-dev/parley/hack/local/cluster"
)

func (n *Node) podDir(pod *corev1.Pod) string { return filepath.Join(n.podsDir(), string(pod.UID)) }

func (n *Node) claimDir(namespace, claim string) string {
	return filepath.Join(n.State, "volumes", namespace, claim)
}

func (n *Node) volumeDir(pod *corev1.Pod, v corev1.Volume) string {
	if v.PersistentVolumeClaim != nil {
		return n.claimDir(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
	}
	return filepath.Join(n.podDir(pod), v.Name)
}

func (n *Node) makeVolumes(ctx context.Context, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		dir := n.volumeDir(pod, v)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		files, err := n.files(ctx, pod.Namespace, v.VolumeSource)
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
		for file, value := range files {
			if !filepath.IsLocal(file) {
				return fmt.Errorf("volume %s: %s is not a path inside the volume", v.Name, file)
			}
			if err := cluster.WritePrivate(filepath.Join(dir, file), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// files returns the content of a volume that is filled from a Secret or from ConfigMaps.
func (n *Node) files(ctx context.Context, namespace string, v corev1.VolumeSource) (map[string][]byte, error) {
	switch {
	case v.Secret != nil:
		secret, err := n.Client.CoreV1().Secrets(namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, unlessOptional(err, v.Secret.Optional)
		}
		return project(secret.Data, v.Secret.Items), nil
	case v.ConfigMap != nil:
		return n.configMapFiles(ctx, namespace, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
	case v.Projected != nil:
		all := map[string][]byte{}
		for _, source := range v.Projected.Sources {
			files, err := n.configMapFiles(ctx, namespace, source.ConfigMap.Name, source.ConfigMap.Items,
				source.ConfigMap.Optional)
			if err != nil {
				return nil, err
			}
			maps.Copy(all, files)
		}
		return all, nil
	}
	return nil, nil
}

func (n *Node) configMapFiles(ctx context.Context, namespace, name string, items []corev1.KeyToPath,
	optional *bool) (map[string][]byte, error) {
	configMap, err := n.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	data := map[string][]byte{}
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	maps.Copy(data, configMap.BinaryData)
	return project(data, items), nil
}

func ofConfigMaps(v *corev1.ProjectedVolumeSource) bool {
	return v != nil && !slices.ContainsFunc(v.Sources, func(s corev1.VolumeProjection) bool { return s.ConfigMap == nil })
}

func unlessOptional(err error, optional *bool) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// project returns the selected keys under their paths, or all keys if none is selected.
func project(data map[string][]byte, items []corev1.KeyToPath) map[string][]byte {
	if len(items) == 0 {
		return data
	}
	files := map[string][]byte{}
	for _, item := range items {
		if value, ok := data[item.Key]; ok {
			files[item.Path] = value
		}
	}
	return files
}

func (n *Node) removeSecrets(pod *corev1.Pod) {
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil {
			_ = os.RemoveAll(n.volumeDir(pod, v))
		}
	}
}

// localPath translates a container path inside a volume mount to a local path. It returns any other
// text unchanged.
func (n *Node) localPath(pod *corev1.Pod, path string) string {
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		below, ok := strings.CutPrefix(path, mount.MountPath)
		if !ok || below != "" && below[0] != '/' {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.Name == mount.Name {
				return n.volumeDir(pod, v) + below
			}
		}
	}
	return path
}

func (n *Node) claimGone(o any) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
		_ = os.RemoveAll(n.claimDir(claim.Namespace, claim.Name))
	}
}

// sweep removes the directories of pods and claims that were deleted while no node ran.
func (n *Node) sweep(claims, pods cache.Store) {
	keep := map[string]bool{}
	for _, o := range pods.List() {
		keep[n.podDir(o.(*corev1.Pod))] = true
	}
	for _, o := range claims.List() {
		claim := o.(*corev1.PersistentVolumeClaim)
		keep[n.claimDir(claim.Namespace, claim.Name)] = true
	}
	found, _ := filepath.Glob(filepath.Join(n.podsDir(), "*"))
	volumes, _ := filepath.Glob(n.claimDir("*", "*"))
	for _, dir := range append(found, volumes...) {
		if !keep[dir] {
			_ = os.RemoveAll(dir)
		}
	}
}
