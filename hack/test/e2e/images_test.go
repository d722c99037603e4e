package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestImageHoldsItsProgramsAndTheirEntryPoint(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeImage(dir, pauseImage, empty.Image, map[string]string{"usr/bin/pause": program},
		[]string{"/usr/bin/pause"}); err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(dir, "localhost_pause_e2e.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.OS != "linux" || strings.Join(config.Config.Entrypoint, " ") != "/usr/bin/pause" {
		t.Errorf("the configuration is %+v, %v", config, err)
	}
	files := mutate.Extract(image)
	defer files.Close()
	archive := tar.NewReader(files)
	header, err := archive.Next()
	if err != nil || header.Name != "usr/bin/pause" || header.Mode != 0o755 {
		t.Errorf("the image begins with %+v, %v", header, err)
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the image holds more than its programs: %v", err)
	}
}

func TestWithoutRootTheReasonIsReported(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("this is root")
	}
	if reason := unable(); !strings.Contains(reason, "root") {
		t.Errorf("the reason is %q", reason)
	}
}
