package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// inputReader reads from the API server the Secrets and ConfigMaps that a session needs to start.
// It reads each object only one time.
type inputReader struct {
	client    client.Reader
	namespace string
	secrets   *secretReader
	// configMaps maps the name of each ConfigMap to its keys. The values are not kept, because they
	// may be large.
	configMaps map[string]sets.Set[string]
}

func newInputReader(c client.Reader, namespace string) *inputReader {
	return &inputReader{c, namespace, newSecretReader(c, namespace), map[string]sets.Set[string]{}}
}

// firstMissing returns the name of a Secret or ConfigMap that is missing or lacks a key, and the
// reason as a blocker. The parameter last is the name that the previous call for this session
// returned. firstMissing checks the object with this name first: hundreds of sessions may wait for
// this object, and should read no other object meanwhile.
func (r *inputReader) firstMissing(ctx context.Context, files []objects.SecretFile, refs []v1alpha1.ConfigMapReference,
	last string) (name string, missing *lifecycle.Blocker, err error) {
	type input struct {
		name  string
		check func() (*lifecycle.Blocker, error)
	}
	var inputs []input
	for _, f := range files {
		inputs = append(inputs, input{f.Ref.Ref.Name, func() (*lifecycle.Blocker, error) {
			_, missing, err := r.secrets.value(ctx, f.Ref)
			return missing, err
		}})
	}
	for _, ref := range refs {
		inputs = append(inputs, input{ref.Ref.Name, func() (*lifecycle.Blocker, error) {
			return r.checkConfigMap(ctx, ref)
		}})
	}
	first := slices.DeleteFunc(slices.Clone(inputs), func(i input) bool { return i.name != last })
	for _, i := range append(first, inputs...) {
		if missing, err := i.check(); missing != nil || err != nil {
			return i.name, missing, err
		}
	}
	return "", nil, nil
}

func (r *inputReader) checkConfigMap(ctx context.Context, ref v1alpha1.ConfigMapReference) (*lifecycle.Blocker, error) {
	name, key := ref.Ref.Name, ref.Ref.Key
	if r.configMaps[name] == nil {
		configMap := &corev1.ConfigMap{}
		err := r.client.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, configMap)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
		}
		r.configMaps[name] = sets.KeySet(configMap.Data).Union(sets.KeySet(configMap.BinaryData))
	}
	if !r.configMaps[name].Has(key) {
		return lifecycle.NewBlocker(v1alpha1.ReasonConfigMapNotFound, "%s: ConfigMap %s with key %s does not exist",
			ref.Path, name, key), nil
	}
	return nil, nil
}
