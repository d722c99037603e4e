package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// small is a program that builds quickly.
const small = "../../../cmd/supervisor"

func someOptions(t *testing.T) options {
	t.Helper()
	dir := t.TempDir()
	return options{
		tag: "example.com/parley:1", out: filepath.Join(dir, "out"), work: filepath.Join(dir, "work"),
		architectures: []string{"amd64", "arm64"}, packages: []string{small},
	}
}

func TestBuildsAreReproducible(t *testing.T) {
	t.Parallel()
	var first map[string][]byte
	for range 2 {
		o := someOptions(t)
		if err := run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{}
		for _, file := range []string{"parley.tar", "parley-linux-amd64.spdx.json", "parley-linux-arm64.spdx.json"} {
			content, err := os.ReadFile(filepath.Join(o.out, file))
			if err != nil {
				t.Fatal(err)
			}
			files[file] = content
		}
		if first == nil {
			first = files
			continue
		}
		for file, content := range files {
			if !bytes.Equal(content, first[file]) {
				t.Errorf("the second build of %s differs", file)
			}
		}
	}
}

func TestTheTarballIsAnOCILayoutWithTheImageName(t *testing.T) {
	t.Parallel()
	o := someOptions(t)
	o.tag, o.architectures = "parley:1", []string{runtime.GOARCH}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(o.out, "parley.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	names := map[string][]byte{}
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if names[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(string(names["oci-layout"]), "imageLayoutVersion") {
		t.Error("the tarball is not an OCI layout")
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(names["index.json"]))
	if err != nil || len(index.Manifests) != 2 {
		t.Fatalf("its index is %s, %v", names["index.json"], err)
	}
	byDigest := "docker.io/library/parley@" + index.Manifests[0].Digest.String()
	for i, want := range []string{"docker.io/library/parley:1", byDigest} {
		if got := index.Manifests[i].Annotations["io.containerd.image.name"]; got != want {
			t.Errorf("containerd would name the image %q, want %q", got, want)
		}
	}
	expectBuilt(t, o, byDigest)
}

// expectBuilt checks the file from which `make build-installer` reads the image's digest.
func expectBuilt(t *testing.T, o options, byDigest string) {
	t.Helper()
	built, err := os.ReadFile(filepath.Join(o.out, "built"))
	if want := o.tag + " " + byDigest + "\n"; err != nil || string(built) != want {
		t.Errorf("the file says %q (%v), want %q", built, err, want)
	}
}

func TestImagesArePushedWithTheirSBOMs(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithReferrersSupport(true)))
	defer server.Close()
	o := someOptions(t)
	o.push, o.tag = true, strings.TrimPrefix(server.URL, "http://")+"/parley:1"
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(o.tag)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	expectBuilt(t, o, tag.Context().Name()+"@"+digest.String())
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("the index is %+v, %v", manifest, err)
	}
	for _, entry := range manifest.Manifests {
		t.Run(entry.Platform.Architecture, func(t *testing.T) {
			image, err := index.Image(entry.Digest)
			if err != nil {
				t.Fatal(err)
			}
			expectProgram(t, image, entry.Platform.Architecture)
			expectList(t, tag.Context(), entry.Digest)
		})
	}
}

func expectProgram(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil || config.Architecture != architecture || config.OS != "linux" || config.Config.User != "65532:65532" {
		t.Errorf("the configuration is %+v, %v", config, err)
	}
	files := mutate.Extract(image)
	defer files.Close()
	archive := tar.NewReader(files)
	header, err := archive.Next()
	if err != nil || header.Name != "supervisor" || header.Mode != 0o755 {
		t.Errorf("the image begins with %+v, %v", header, err)
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the image holds more than the program: %v", err)
	}
}

func expectList(t *testing.T, repository name.Repository, of v1.Hash) {
	t.Helper()
	referrers, err := remote.Referrers(repository.Digest(of.String()))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := referrers.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the referrers of %s are %+v, %v", of, manifest, err)
	}
	artifact, err := remote.Get(repository.Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	described, err := v1.ParseManifest(bytes.NewReader(artifact.Manifest))
	if err != nil || described.ArtifactType != sbomMediaType || len(described.Layers) != 1 {
		t.Fatalf("the artifact is %s, %v", artifact.Manifest, err)
	}
	layer, err := remote.Layer(repository.Digest(described.Layers[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	content, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var list spdxDocument
	if err := json.NewDecoder(content).Decode(&list); err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, p := range list.Packages {
		modules = append(modules, p.Name)
	}
	if got := strings.Join(modules, " "); !strings.Contains(got, "github.com/parley-dev/parley") || !strings.Contains(got,
		"stdlib") {
		t.Errorf("the list names %s", got)
	}
}

func TestPushNeedsARegistryInTheImageName(t *testing.T) {
	t.Parallel()
	o := someOptions(t)
	o.push, o.tag = true, "parley:latest"
	if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "IMG") {
		t.Errorf("got %v", err)
	}
}
