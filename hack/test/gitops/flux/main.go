// Command flux runs packages of Flux's kustomize-controller. It computes the health of objects with
// CEL expressions, and compares a cluster with a Git repository. It can also apply the repository
// and prune objects that are no longer in it.
//
// It is a separate module, so that Parley does not depend on Flux.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

type options struct {
	kubeconfig, namespace, repository string
	apply                             bool
}

// health is a kstatus value.
type health struct {
	Status string `json:"status"`
}

type answer struct {
	// Drifted lists the objects that differ from the repository.
	Drifted []string `json:"drifted"`
	// Done maps each applied or pruned object to its result.
	Done map[string]string `json:"done"`
	// Health maps each existing object to its health before the sync.
	Health map[string]health `json:"health"`
}

type checks map[string]*cel.StatusEvaluator

func main() {
	var o options
	script := flag.String("script", "", "The Kustomization with the health expressions of Parley's kinds.")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "The cluster. Without it, objects are read from standard input, one "+
		"per line, and their health is written, one per line.")
	flag.StringVar(&o.namespace, "namespace", "default", "The namespace to apply to.")
	flag.StringVar(&o.repository, "repository", "", "The URL of the repository.")
	flag.BoolVar(&o.apply, "apply", false, "Apply the repository, and prune.")
	flag.Parse()
	all, err := readChecks(*script)
	if err != nil {
		log.Fatalf("read the expressions: %v", err)
	}
	run := all.writeHealth
	if o.kubeconfig != "" {
		run = func() error { return o.compare(all) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func readChecks(file string) (checks, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return nil, err
	}
	all := checks{}
	for _, check := range kustomization.Spec.HealthCheckExprs {
		if all[check.Kind], err = cel.NewStatusEvaluator(&check.HealthCheckExpressions); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// healthOf computes an object's health with the health check expressions. Like Flux, it evaluates
// no expression for an object that is being deleted.
func (all checks) healthOf(object *unstructured.Unstructured) (health, error) {
	if object.GetDeletionTimestamp() != nil {
		return health{status.TerminatingStatus.String()}, nil
	}
	result, err := all[object.GetKind()].Evaluate(context.Background(), object)
	if err != nil {
		return health{}, err
	}
	return health{result.Status.String()}, nil
}

func (all checks) writeHealth() error {
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(lines.Bytes()); err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		h, err := all.healthOf(object)
		if err != nil {
			return err
		}
		if err := answers.Encode(h); err != nil {
			return err
		}
	}
	return lines.Err()
}

// compare reports which objects differ from the repository, and their health. It applies the
// repository if the flag -apply is set.
func (o options) compare(all checks) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	targets, err := o.read(ctx)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	manager := ssa.NewResourceManager(c, nil, ssa.Owner{Field: "kustomize-controller",
		Group: "kustomize.toolkit.fluxcd.io"})
	manager.SetOwnerLabels(targets, "sessions", "flux-system")
	a := answer{Drifted: []string{}, Done: map[string]string{}, Health: map[string]health{}}
	for _, target := range targets {
		entry, _, _, err := manager.Diff(ctx, target, ssa.DefaultDiffOptions())
		if err != nil {
			return err
		}
		name := target.GetKind() + "/" + target.GetName()
		if entry.Action != ssa.UnchangedAction {
			a.Drifted = append(a.Drifted, name)
		}
		live := target.DeepCopy()
		if err := c.Get(ctx, client.ObjectKeyFromObject(target), live); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return err
		}
		if a.Health[name], err = all.healthOf(live); err != nil {
			return err
		}
	}
	if o.apply {
		if err := o.sync(ctx, manager, targets, &a); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func (o options) sync(ctx context.Context, manager *ssa.ResourceManager, targets []*unstructured.Unstructured,
	a *answer) error {
	changed, err := manager.ApplyAll(ctx, targets, ssa.DefaultApplyOptions())
	if err != nil {
		return err
	}
	for _, entry := range changed.Entries {
		a.Done[entry.ObjMetadata.GroupKind.Kind+"/"+entry.ObjMetadata.Name] = string(entry.Action)
	}
	kept := map[string]bool{}
	for _, target := range targets {
		kept[target.GetKind()+"/"+target.GetName()] = true
	}
	for _, kind := range []string{"Conversation", "UserSettings"} {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "parley.dev/v1alpha1", "kind": kind +
			"List"}}
		if err := manager.Client().List(ctx, list, client.InNamespace(o.namespace),
			client.MatchingLabels(manager.GetOwnerLabels("sessions", "flux-system"))); err != nil {
			return err
		}
		for i := range list.Items {
			name := kind + "/" + list.Items[i].GetName()
			if kept[name] {
				continue
			}
			entry, err := manager.Delete(ctx, &list.Items[i],
				ssa.DeleteOptions{PropagationPolicy: metav1.DeletePropagationBackground})
			if err != nil {
				return err
			}
			a.Done[name] = string(entry.Action)
		}
	}
	return nil
}

func (o options) read(ctx context.Context) (objects []*unstructured.Unstructured, err error) {
	dir, err := os.MkdirTemp("", "flux-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	clone := exec.CommandContext(ctx, "git", "clone", "--quiet", "--depth=1", o.repository, dir)
	if output, err := clone.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("clone: %w: %s", err, output)
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		items, err := utils.ReadObjects(bytes.NewReader(text))
		objects = append(objects, items...)
		return err
	})
	for _, object := range objects {
		object.SetNamespace(o.namespace)
	}
	return objects, err
}
