package e2e

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/parley-dev/parley/hack/release/oci"
)

// Images of the checks. All registries in their names are on this machine.
const (
	pauseImage  = "localhost/pause:e2e"
	parleyImage = "localhost/parley:e2e"
	nextImage   = "localhost/parley:e2e-next" // the same image under another name, for the upgrade
	debianImage = "localhost/debian:e2e"
	hungryImage = registryAddress + "/hungry:e2e" // an image that a user chose
	absentImage = "localhost/absent:e2e"
	thiefImage  = registryAddress + "/thief:e2e" // its variables try to steal a session's keys
)

// thiefAddress is the proxy to which the variables of thiefImage point.
const thiefAddress = nodeAddress + ":5001"

var thiefVariables = []string{"HTTP_PROXY=http://" + thiefAddress, "http_proxy=http://" + thiefAddress,
	"HTTPS_PROXY=http://" + thiefAddress, "GODEBUG=http2debug=2", "SSL_CERT_FILE=/thief.pem",
	"PARLEY_SESSION_DIR=/thief"}

func imagesDir(state string) string { return filepath.Join(state, "images") }

// buildImages writes all images as tarballs, which containerd imports.
func buildImages(ctx context.Context, o options) error {
	for _, dir := range []string{imagesDir(o.state), o.cache} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	base, err := debianBase(ctx, o.cache)
	if err != nil {
		return fmt.Errorf("build the Debian base: %w", err)
	}
	bin := func(program string) string { return filepath.Join(o.binDir, program) }
	for _, image := range []struct {
		tag   string
		base  v1.Image
		files map[string]string
		entry []string
		env   []string
	}{
		{pauseImage, empty.Image, map[string]string{"pause": bin("pause")}, []string{"/pause"}, nil},
		{hungryImage, empty.Image, map[string]string{"hungry": bin("hungry")}, []string{"/hungry"}, nil},
		// The agent does not start without a shell. It runs no command in this check, so any
		// program can be /bin/sh. TMPDIR names a directory for the agent's temporary files.
		{thiefImage, empty.Image, map[string]string{"bin/sh": bin("pause")}, nil,
			append(thiefVariables, "TMPDIR=/workspace")},
		{debianImage, base, map[string]string{"usr/local/bin/toolserver": bin("toolserver")}, nil, nil},
	} {
		if err := writeImage(imagesDir(o.state), image.tag, image.base, image.files, image.entry, image.env...); err != nil {
			return fmt.Errorf("%s: %w", image.tag, err)
		}
	}
	return writeParley(o)
}

// writeParley writes Parley's image as `make images` does, but for one architecture only.
func writeParley(o options) error {
	programs := map[string]string{}
	for _, program := range []string{"manager", "facade", "archive", "supervisor", "runtime", "agent"} {
		programs[program] = filepath.Join(o.binDir, program)
	}
	file := imageFile(imagesDir(o.state), parleyImage)
	image, err := oci.Image(empty.Image, file+".layer", programs,
		oci.Config{Architecture: runtime.GOARCH, User: "65532:65532"})
	if err != nil {
		return err
	}
	index, err := oci.Index(image)
	if err != nil {
		return err
	}
	reference, err := name.NewTag(parleyImage)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	built := parleyImage + " " + oci.ShortName(reference.Context().Digest(digest.String())) + "\n"
	if err := os.WriteFile(builtFile(o.state), []byte(built), 0o600); err != nil {
		return err
	}
	return oci.WriteTarball(file+".tar", reference, index)
}

// builtFile returns the path of a file like dist/images/built, which contains the image's name and
// digest.
func builtFile(state string) string { return filepath.Join(imagesDir(state), "built") }

func writeImage(dir, tag string, base v1.Image, programs map[string]string, entry []string,
	env ...string) error {
	file := imageFile(dir, tag)
	image, err := oci.Image(base, file+".layer", programs, oci.Config{Architecture: runtime.GOARCH, Entrypoint: entry})
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.Config.Env = append(config.Config.Env, env...)
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	reference, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file+".tar", reference, image)
}

func TestAnImageContainsOnlyTheGivenProgramAndEntryPoint(t *testing.T) {
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

func TestTheSkipReasonMentionsRootIfTheUserIsNotRoot(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("this is root")
	}
	if reason := inability(); !strings.Contains(reason, "root") {
		t.Errorf("the reason is %q", reason)
	}
}
