// Command argocd runs code of Argo CD. It computes the health of objects with a Lua script, and
// compares a cluster with a Git repository. It can also apply the repository and prune objects that
// are no longer in it.
//
// It is a separate module, so that Parley does not depend on Argo CD.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/engine"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// tracking is Argo CD's annotation on applied objects. Only objects with this annotation are
// pruned.
const tracking = "argocd.argoproj.io/tracking-id"

type options struct {
	kubeconfig, namespace, repository string
	apply                             bool
}

type answer struct {
	// Drifted lists the objects that differ from the repository.
	Drifted []string `json:"drifted"`
	// Done maps each applied or pruned object to its result.
	Done map[string]string `json:"done"`
	// Health maps each existing object to its health before the sync.
	Health map[string]*health.HealthStatus `json:"health"`
}

func main() {
	var o options
	script := flag.String("script", "", "The script that computes the health of Parley's kinds.")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "The cluster. Without it, objects are read from standard input, one "+
		"per line, and their health is written, one per line.")
	flag.StringVar(&o.namespace, "namespace", "default", "The namespace to apply to.")
	flag.StringVar(&o.repository, "repository", "", "The URL of the repository.")
	flag.BoolVar(&o.apply, "apply", false, "Apply the repository, and prune.")
	flag.Parse()
	text, err := os.ReadFile(*script)
	if err != nil {
		log.Fatalf("read the script: %v", err)
	}
	overrides := lua.ResourceHealthOverrides{}
	for _, kind := range []string{"Conversation", "UserSettings"} {
		overrides["parley.dev/"+kind] = v1alpha1.ResourceOverride{HealthLua: string(text)}
	}
	run := writeHealth
	if o.kubeconfig != "" {
		run = o.compare
	}
	if err := run(overrides); err != nil {
		log.Fatal(err)
	}
}

func writeHealth(overrides lua.ResourceHealthOverrides) error {
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(lines.Bytes()); err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		status, err := health.GetResourceHealth(object, overrides)
		if err != nil {
			return err
		}
		if err := answers.Encode(status); err != nil {
			return err
		}
	}
	return lines.Err()
}

// compare reports the objects that differ from the repository, and the health of the existing
// objects. If the flag -apply is set, it also applies the repository.
func (o options) compare(overrides lua.ResourceHealthOverrides) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	targets, revision, err := o.read(ctx)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	cluster := cache.NewClusterCache(config, cache.SetNamespaces([]string{o.namespace}), cache.SetLogr(logr.Discard()),
		cache.SetPopulateResourceInfoHandler(func(un *unstructured.Unstructured, _ bool) (any, bool) {
			mark := un.GetAnnotations()[tracking]
			return mark, mark != ""
		}))
	gitops := engine.NewEngine(config, cluster, engine.WithLogr(logr.Discard()))
	stop, err := gitops.Run()
	if err != nil {
		return err
	}
	defer stop()
	managed := func(r *cache.Resource) bool { mark, _ := r.Info.(string); return mark == o.repository }
	a := answer{Done: map[string]string{}, Health: map[string]*health.HealthStatus{}}
	live, err := cluster.GetManagedLiveObjs(targets, managed)
	if err != nil {
		return err
	}
	if a.Drifted, err = o.drifted(targets, maps.Clone(live), cluster); err != nil {
		return err
	}
	if o.apply {
		results, err := gitops.Sync(ctx, targets, managed, revision, o.namespace, sync.WithPrune(true),
			sync.WithHealthOverride(overrides),
			sync.WithServerSideApply(true), sync.WithServerSideApplyManager("argocd-controller"), sync.WithLogr(logr.Discard()))
		if err != nil {
			return err
		}
		for _, r := range results {
			a.Done[r.ResourceKey.Kind+"/"+r.ResourceKey.Name] = r.Message
		}
	}
	for key, object := range live {
		if a.Health[key.Kind+"/"+key.Name], err = health.GetResourceHealth(object, overrides); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func (o options) read(ctx context.Context) (objects []*unstructured.Unstructured, revision string, err error) {
	dir, err := os.MkdirTemp("", "argocd-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	clone := exec.CommandContext(ctx, "git", "clone", "--quiet", "--depth=1", o.repository, dir)
	if output, err := clone.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("clone: %w: %s", err, output)
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		items, err := kube.SplitYAML(text)
		objects = append(objects, items...)
		return err
	})
	for _, object := range objects {
		object.SetNamespace(o.namespace)
		object.SetAnnotations(map[string]string{tracking: o.repository})
	}
	return objects, "main", err
}

// drifted returns the objects that a sync would change. It also deletes the target objects from the
// parameter live.
func (o options) drifted(targets []*unstructured.Unstructured, live map[kube.ResourceKey]*unstructured.Unstructured,
	cluster cache.ClusterCache) ([]string, error) {
	parsed := sync.Reconcile(targets, live, o.namespace, cluster)
	names := []string{}
	for i, target := range parsed.Target {
		switch {
		case target == nil:
			names = append(names, parsed.Live[i].GetKind()+"/"+parsed.Live[i].GetName())
			continue
		case parsed.Live[i] == nil:
			names = append(names, target.GetKind()+"/"+target.GetName())
			continue
		}
		parser := cluster.GetGVKParser()
		if parser == nil {
			return nil, errors.New("the cluster has no schema")
		}
		result, err := diff.StructuredMergeDiff(target, parsed.Live[i], parser, "argocd-controller")
		if err != nil {
			return nil, fmt.Errorf("compare %s: %w", target.GetName(), err)
		}
		if result.Modified {
			names = append(names, target.GetKind()+"/"+target.GetName())
		}
	}
	return names, nil
}
