package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	sandboxController  = "agent-sandbox-controller"
	sandboxMetricsPort = "agent-sandbox-metrics"
	sandboxHealthPort  = "agent-sandbox-health"
	sandboxName        = "bench" // name of the SandboxTemplate and of the SandboxWarmPool
)

// Names of the subjects that use agent-sandbox.
const (
	sandboxes  = "Sandboxes"
	coldClaims = "SandboxClaims, cold"
	warmClaims = "SandboxClaims"
)

var (
	sandboxGroup   = schema.GroupVersion{Group: "agents.x-k8s.io", Version: "v1beta1"}
	extensionGroup = schema.GroupVersion{Group: "extensions.agents.x-k8s.io", Version: "v1beta1"}
)

// startSandboxController installs the CRDs of agent-sandbox and starts its controller with the
// rights of an admin.
func (b *bed) startSandboxController(ctx context.Context, o options) error {
	files, err := filepath.Glob(filepath.Join(o.sandbox, "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no CRDs in %s: %w", o.sandbox, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &definition.Object); err != nil {
			return err
		}
		definition.Object["spec"].(map[string]any)["conversion"] = map[string]any{"strategy": "None"}
		if err := b.parley.Client.Create(ctx, definition); err != nil {
			return err
		}
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "agent-sandbox"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{sandboxGroup.Group, extensionGroup.Group},
			Resources: []string{"*"}, Verbs: []string{"*"}}}}
	for _, object := range []client.Object{role, &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: benchNamespace, Name: userAccount}},
	}} {
		if err := b.parley.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	if err := cluster.Retry(ctx, pollInterval, func(ctx context.Context) (err error) {
		for kind, group := range map[string]schema.GroupVersion{"Sandbox": sandboxGroup, "SandboxTemplate": extensionGroup,
			"SandboxWarmPool": extensionGroup, "SandboxClaim": extensionGroup} {
			err = errors.Join(err, b.user.List(ctx, sandboxList(group, kind), client.InNamespace(benchNamespace)))
		}
		return err
	}); err != nil {
		return err
	}
	health := b.plane.Ports.Address(sandboxHealthPort)
	return b.supervisor.Start(ctx, cluster.Process{
		Name: sandboxController, Path: filepath.Join(o.sandbox, sandboxController), Grace: 10 * time.Second,
		Env: []string{"KUBECONFIG=" + filepath.Join(b.dir, "kubeconfig")},
		Args: []string{"-extensions", "-leader-elect=false", "-health-probe-bind-address=" + health,
			"-metrics-bind-address=" + b.plane.Ports.Address(sandboxMetricsPort)},
		Ready: cluster.HTTPProbe("http://"+health+"/readyz", nil),
	})
}

func sandboxObject(group schema.GroupVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(group.WithKind(kind))
	object.SetNamespace(benchNamespace)
	object.SetName(name)
	return object
}

func sandboxList(group schema.GroupVersion, kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(group.WithKind(kind + "List"))
	return list
}

// blueprint returns the part of a spec that a Sandbox and a SandboxTemplate share. It contains a
// minimal pod, so that agent-sandbox has no more work than necessary.
func blueprint() (map[string]any, error) {
	pod, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Pod{Spec: minimalPod("", "").Spec})
	if err != nil {
		return nil, err
	}
	return map[string]any{"podTemplate": map[string]any{"spec": pod["spec"], "metadata": map[string]any{}}}, nil
}

func (b *bed) createSandboxPool(ctx context.Context, size int) error {
	spec, err := blueprint()
	if err != nil {
		return err
	}
	spec["envVarsInjectionPolicy"] = "Allowed"
	for _, object := range []*unstructured.Unstructured{
		sandboxObject(extensionGroup, "SandboxTemplate", sandboxName, spec),
		sandboxObject(extensionGroup, "SandboxWarmPool", sandboxName, map[string]any{"replicas": int64(size),
			"sandboxTemplateRef": map[string]any{"name": sandboxName}}),
	} {
		if err := cluster.Retry(ctx, pollInterval, func(ctx context.Context) error {
			return client.IgnoreAlreadyExists(b.user.Create(ctx, object.DeepCopy()))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) readySandboxes(ctx context.Context) (int, error) {
	pool := sandboxObject(extensionGroup, "SandboxWarmPool", sandboxName, nil)
	if err := b.user.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return 0, err
	}
	ready, _, err := unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
	return int(ready), err
}

// claimedWarm returns the number of SandboxClaims that got a Sandbox from the pool. The names of
// such Sandboxes begin with the name of the pool.
func (b *bed) claimedWarm(ctx context.Context) (int, error) {
	list := sandboxList(extensionGroup, "SandboxClaim")
	if err := b.user.List(ctx, list, client.InNamespace(benchNamespace)); err != nil {
		return 0, err
	}
	count := 0
	for i := range list.Items {
		name, _, _ := unstructured.NestedString(list.Items[i].Object, "status", "sandbox", "name")
		if strings.HasPrefix(name, sandboxName+"-") {
			count++
		}
	}
	return count, nil
}

// sandboxSubject returns a subject that creates objects of agent-sandbox. An object has arrived
// when its condition Ready is true.
func (b *bed) sandboxSubject(subjectName string, group schema.GroupVersion, kind string,
	spec map[string]any) subject {
	return subject{
		name: subjectName,
		create: func(ctx context.Context, name string) error {
			return b.user.Create(ctx, sandboxObject(group, kind, name, runtime.DeepCopyJSON(spec)))
		},
		follow: func(ctx context.Context, from string) (watch.Interface, error) {
			return b.user.Watch(ctx, sandboxList(group, kind), client.InNamespace(benchNamespace),
				&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: from}})
		},
		arrived: func(event watch.Event) (string, bool) {
			object, is := event.Object.(*unstructured.Unstructured)
			if !is {
				return "", false
			}
			conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
			for _, c := range conditions {
				if c, _ := c.(map[string]any); c["type"] == "Ready" {
					return object.GetName(), c["status"] == "True"
				}
			}
			return "", false
		},
	}
}

// sandboxes returns a subject that creates Sandboxes without a claim.
func (b *bed) sandboxes() (subject, error) {
	spec, err := blueprint()
	return b.sandboxSubject(sandboxes, sandboxGroup, "Sandbox", spec), err
}

// claims returns a subject that creates SandboxClaims. If variables is true, each claim sets a
// variable, and therefore gets no Sandbox from the pool.
func (b *bed) claims(name string, variables bool) subject {
	spec := map[string]any{"warmPoolRef": map[string]any{"name": sandboxName}}
	if variables {
		spec["env"] = []any{map[string]any{"name": "TASK", "value": *wanted.InitialUserMsg}}
	}
	return b.sandboxSubject(name, extensionGroup, "SandboxClaim", spec)
}

func (b *bed) warmClaims() subject { return b.claims(warmClaims, false) }
