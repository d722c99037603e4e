// Package oci makes container images of programs, without Docker. The images are reproducible.
package oci

import (
	"archive/tar"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Config is the configuration of an image.
type Config struct {
	Architecture string
	Entrypoint   []string
	User         string
	Labels       map[string]string
}

// Image adds programs to a base image. In the map programs, each key is a path in the image, and
// its value is a local file. The layer file must exist as long as the image is used.
func Image(base v1.Image, layerFile string, programs map[string]string, c Config) (v1.Image, error) {
	layer, err := programLayer(layerFile, programs)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", c.Architecture
	config.Config.Entrypoint, config.Config.User, config.Config.Labels = c.Entrypoint, c.User, c.Labels
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON), nil
}

// programLayer makes a reproducible layer: the files are sorted and have no times and no owners.
func programLayer(file string, programs map[string]string) (v1.Layer, error) {
	out, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	for _, target := range slices.Sorted(maps.Keys(programs)) {
		if err := addFile(archive, target, programs[target], 0o755); err != nil {
			return nil, fmt.Errorf("%s: %w", path.Base(target), err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
}

func addFile(archive *tar.Writer, target, source string, mode int64) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: target, Mode: mode,
		Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
