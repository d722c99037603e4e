package oci

import (
	"archive/tar"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Index combines images for several architectures into one index.
func Index(images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}},
		})
	}
	return index, nil
}

// ShortName returns an image's name with its registry. For Docker's registry, it uses docker.io
// instead of index.docker.io.
func ShortName(reference name.Reference) string {
	return strings.TrimPrefix(reference.Name(), "index.")
}

// WriteTarball writes an index as an OCI layout to a tarball. containerd and Docker import the
// index under its tag and under its digest.
func WriteTarball(file string, tag name.Tag, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), "layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	written, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	// containerd reads the first annotation. The OCI standard defines the second.
	for _, reference := range []name.Reference{tag, tag.Context().Digest(digest.String())} {
		if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          ShortName(reference),
			"org.opencontainers.image.ref.name": reference.Identifier(),
		})); err != nil {
			return err
		}
	}
	return archive(file, dir)
}

// archive writes the files of a directory to a tarball, in the order of their names.
func archive(file, dir string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		target, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return addFile(archive, filepath.ToSlash(target), path, 0o644)
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return out.Close()
}
