package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// emptyConfig is the media type of an artifact's empty configuration.
const emptyConfig = "application/vnd.oci.empty.v1+json"

// push writes the index and its images to a registry. It attaches each image's SBOM as a referring
// artifact, so that scanners find it. The credentials come from the configuration of Docker or
// Podman.
func push(ctx context.Context, tag name.Tag, built images) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(tag, built.index, options...); err != nil {
		return err
	}
	for i, image := range built.each {
		if err := attach(tag.Context(), image, built.lists[i], options); err != nil {
			return fmt.Errorf("attach the SBOM: %w", err)
		}
	}
	return nil
}

func attach(repository name.Repository, image v1.Image, list []byte, options []remote.Option) error {
	subject, err := partial.Descriptor(image)
	if err != nil {
		return err
	}
	config := static.NewLayer([]byte("{}"), emptyConfig)
	layer := static.NewLayer(list, sbomMediaType)
	for _, blob := range []v1.Layer{config, layer} {
		if err := remote.WriteLayer(repository, blob, options...); err != nil {
			return err
		}
	}
	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: sbomMediaType,
		Subject: &v1.Descriptor{MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest},
	}
	for blob, into := range map[v1.Layer]func(v1.Descriptor){
		config: func(d v1.Descriptor) { manifest.Config = d },
		layer:  func(d v1.Descriptor) { manifest.Layers = []v1.Descriptor{d} },
	} {
		descriptor, err := partial.Descriptor(blob)
		if err != nil {
			return err
		}
		into(*descriptor)
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return err
	}
	return remote.Put(repository.Digest(digest.String()), artifact(content), options...)
}

// artifact is the manifest of an artifact. It implements remote.Taggable.
type artifact []byte

func (a artifact) RawManifest() ([]byte, error)      { return a, nil }
func (artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
