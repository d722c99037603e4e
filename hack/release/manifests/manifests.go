// Package manifests builds, decodes and applies the manifests of config/.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Render builds a kustomization with a command such as kubectl kustomize.
func Render(ctx context.Context, dir string, command ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command[0], append(slices.Clone(command[1:]), dir)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	rendered, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", strings.Join(command, " "), dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return rendered, nil
}

// Decode decodes YAML documents.
func Decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Build renders and decodes a kustomization.
func Build(ctx context.Context, dir string, command ...string) ([]*unstructured.Unstructured, error) {
	rendered, err := Render(ctx, dir, command...)
	if err != nil {
		return nil, err
	}
	return Decode(rendered)
}
