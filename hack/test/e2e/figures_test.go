package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

const samples = 10

// figures measures how long sessions and bare pods take to start, and how much memory an idle
// session uses. Only one sample runs at a time.
func figures(t *t) {
	ns := t.newNamespace()
	t.settings(ns, nil)
	var sessions, mounted, own, pods []time.Duration
	for i := range samples {
		name := fmt.Sprintf("s%d", i)
		t.beginAt(i)
		began := time.Now()
		steps := t.followPod(ns, name)
		c := t.running(ns, name, ofClass(scratchClass))
		sessions = append(sessions, time.Since(began))
		if i == samples-1 {
			t.Logf("steps of the last start: %s", steps())
			t.Logf("memory of an idle session: %s", t.settledMemory(t.podOf(c).UID))
		}
		t.must(t.client.Delete(t.ctx, c))
		t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName(c.Name))

		mounted = append(mounted, t.timeSession(i, ns, fmt.Sprintf("m%d", i), mountClass))
		own = append(own, t.timeSession(i, ns, fmt.Sprintf("o%d", i), plainClass))
		t.beginAt(i)
		pods = append(pods, t.timeBarePod(ns, fmt.Sprintf("b%d", i)))
	}
	t.Logf("from creation to RUNNING: %s", summary(sessions))
	t.Logf("the same with the runtime mounted: %s", summary(mounted))
	t.Logf("the same in Parley's own image, without an init container: %s", summary(own))
	t.Logf("bare pod of the same image, from creation to Ready: %s", summary(pods))
}

func (t *t) timeSession(sample int, namespace, name, class string) time.Duration {
	t.beginAt(sample)
	began := time.Now()
	c := t.running(namespace, name, ofClass(class))
	took := time.Since(began)
	t.must(t.client.Delete(t.ctx, c))
	t.gone(&corev1.Pod{}, namespace, v1alpha1.SessionName(c.Name))
	return took
}

// beginAt delays each sample by a different fraction of a second. The kubelet checks for ended
// processes once per second, and the samples must not all start right after a check.
func (t *t) beginAt(sample int) {
	t.must(cluster.Sleep(t.ctx, time.Duration(sample)*time.Second/samples))
}

var podSteps = []struct {
	name    string
	reached func(*corev1.Pod) bool
}{
	{"made", func(*corev1.Pod) bool { return true }},
	{"scheduled", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }},
	{"runtime installed", func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) > 0 && p.Status.InitContainerStatuses[0].State.Terminated != nil
	}},
	{"process runs", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil
	}},
	{"process answers", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && ptr.Deref(p.Status.ContainerStatuses[0].Started, false)
	}},
	{"ready", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready
	}},
}

// followPod begins to watch a pod before the pod is created. The returned function returns the time
// of each step of the pod's start.
func (t *t) followPod(namespace, name string) (steps func() string) {
	began := time.Now()
	watch, err := t.client.Watch(t.ctx, &corev1.PodList{}, client.InNamespace(namespace),
		client.MatchingFields{"metadata.name": v1alpha1.SessionName(name)})
	t.must(err)
	var taken []string
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		for event := range watch.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			for ok && len(taken) < len(podSteps) && podSteps[len(taken)].reached(pod) {
				taken = append(taken, fmt.Sprintf("%s %d ms", podSteps[len(taken)].name, time.Since(began).Milliseconds()))
			}
			if len(taken) == len(podSteps) {
				return
			}
		}
	}()
	return func() string {
		<-ready
		watch.Stop()
		return strings.Join(taken, ", ")
	}
}

// barePod returns a pod that a namespace with the restricted Pod Security Standard accepts.
func barePod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](sessionUser),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "bare", Image: debianImage, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "infinity"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

func (t *t) timeBarePod(namespace, name string) time.Duration {
	pod := barePod(namespace, name)
	began := time.Now()
	t.must(t.client.Create(t.ctx, pod))
	t.retry(func(ctx context.Context) error {
		if err := t.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("the bare pod is not ready")
	})
	took := time.Since(began)
	t.must(t.client.Delete(t.ctx, pod))
	t.gone(pod, namespace, name)
	return took
}

func summary(durations []time.Duration) string {
	slices.Sort(durations)
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	return fmt.Sprintf("p50 of %d %s, from %s to %s", len(durations), round(durations[len(durations)/2]),
		round(durations[0]), round(durations[len(durations)-1]))
}

// settledMemory returns the memory of an idle session. The session frees its startup memory
// gradually, so the function waits until ten measurements show no decrease.
func (t *t) settledMemory(uid types.UID) string {
	least, same := 0, 0
	t.retry(func(context.Context) error {
		if kibibytes := memoryOf(uid); least == 0 || kibibytes < least {
			least, same = kibibytes, 0
		}
		if same++; same < 10 {
			return errors.New("the memory of the session does not settle")
		}
		return nil
	})
	return fmt.Sprintf("%.1f MiB in %d processes (PSS)", float64(least)/1024, len(processesOfPod(uid)))
}

// memoryOf returns the PSS of a pod's processes in KiB: their private memory and their share of
// shared memory.
func memoryOf(uid types.UID) (total int) {
	for _, pid := range processesOfPod(uid) {
		rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(rollup)) {
			kibibytes := 0
			if _, err := fmt.Sscanf(line, "Pss: %d kB", &kibibytes); err == nil {
				total += kibibytes
			}
		}
	}
	return total
}
