package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The images of a run. Their names say that no registry has them.
const (
	pauseImage  = "localhost/pause:e2e"
	parleyImage = "localhost/parley:e2e"
	debianImage = "localhost/debian:e2e"
	hungryImage = registryAddress + "/hungry:e2e" // which a user names
	absentImage = "localhost/absent:e2e"
)

func imagesDir(state string) string { return filepath.Join(state, "images") }

// buildImages writes the images of our programs, as tarballs that containerd imports.
func buildImages(ctx context.Context, o options) error {
	for _, dir := range []string{imagesDir(o.state), o.cache} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	base, err := debianBase(ctx, o.cache)
	if err != nil {
		return fmt.Errorf("make the Debian base: %w", err)
	}
	bin := func(program string) string { return filepath.Join(o.binDir, program) }
	for _, image := range []struct {
		tag   string
		base  v1.Image
		files map[string]string
		entry []string
	}{
		{pauseImage, empty.Image, map[string]string{"pause": bin("pause")}, []string{"/pause"}},
		{hungryImage, empty.Image, map[string]string{"hungry": bin("hungry")}, []string{"/hungry"}},
		{parleyImage, empty.Image, map[string]string{"manager": bin("manager"), "facade": bin("facade"), "runtime": bin("runtime"), "agent": bin("agent")}, nil},
		{debianImage, base, map[string]string{"usr/local/bin/toolserver": bin("toolserver")}, nil},
	} {
		if err := writeImage(imagesDir(o.state), image.tag, image.base, image.files, image.entry); err != nil {
			return fmt.Errorf("%s: %w", image.tag, err)
		}
	}
	return nil
}

func writeImage(dir, tag string, base v1.Image, files map[string]string, entry []string) error {
	file := imageFile(dir, tag)
	layer, err := programLayer(file+".layer", files)
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", goArch()
	config.Config.Entrypoint = entry
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	reference, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file+".tar", reference, image)
}

// programLayer is a layer of programs, by their paths in the image.
func programLayer(path string, files map[string]string) (v1.Layer, error) {
	out, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	for target, source := range files {
		if err := addProgram(archive, target, source); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromFile(path)
}

func addProgram(archive *tar.Writer, target, source string) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: target, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
