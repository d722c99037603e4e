// Command images builds Parley's programs and one image of them, for several architectures and
// without Docker. It writes a tarball for containerd and Docker, or pushes the image, and writes
// SBOMs. Builds are reproducible.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"

	"github.com/parley-dev/parley/hack/release/oci"
)

// packages lists the programs that the image contains, in its root directory.
var packages = []string{"./cmd/manager", "./cmd/facade", "./cmd/archive", "./cmd/supervisor", "./cmd/runtime",
	"./cmd/agent"}

type options struct {
	tag           string
	out           string
	work          string
	architectures []string
	packages      []string
	push          bool
}

func main() {
	o := options{packages: packages}
	architectures := "amd64,arm64"
	flag.StringVar(&o.tag, "tag", "parley:latest", "name of the image")
	flag.StringVar(&o.out, "out", "dist/images", "directory of the tarball and the SBOMs")
	flag.StringVar(&o.work, "work", "bin/images", "directory of the programs")
	flag.StringVar(&architectures, "arch", architectures, "architectures, separated by commas")
	flag.BoolVar(&o.push, "push", false, "push the image to the registry in its name")
	flag.Parse()
	o.architectures = strings.Split(architectures, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return err
	}
	if o.push && tag.RegistryStr() == name.DefaultRegistry && !strings.Contains(o.tag, "/") {
		return fmt.Errorf("%s names no registry: set IMG, for example IMG=registry.example.com/parley:1.0", o.tag)
	}
	built, err := build(ctx, o)
	if err != nil {
		return err
	}
	digest, err := built.index.Digest()
	if err != nil {
		return err
	}
	byDigest := oci.ShortName(tag.Context().Digest(digest.String()))
	if o.push {
		if err := push(ctx, tag, built); err != nil {
			return fmt.Errorf("push: %w", err)
		}
		fmt.Println("pushed " + byDigest)
	} else {
		file := filepath.Join(o.out, "parley.tar")
		if err := oci.WriteTarball(file, tag, built.index); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		fmt.Printf("%s is %s\n", file, byDigest)
	}
	// `make build-installer` writes the image's name with its digest into install.yaml. With a
	// digest, Deployments change only when the programs change, and nobody can replace the image.
	return os.WriteFile(filepath.Join(o.out, "built"), []byte(o.tag+" "+byDigest+"\n"), 0o644)
}

// images is the result of a build: an index, the image of each architecture, and the SBOMs of these
// images, in the same order.
type images struct {
	index v1.ImageIndex
	each  []v1.Image
	lists [][]byte
}

func build(ctx context.Context, o options) (images, error) {
	var built images
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return built, err
	}
	for _, architecture := range o.architectures {
		dir := filepath.Join(o.work, "linux-"+architecture)
		if err := compile(ctx, dir, architecture, o.packages); err != nil {
			return built, err
		}
		programs := map[string]string{}
		for _, pkg := range o.packages {
			programs[filepath.Base(pkg)] = filepath.Join(dir, filepath.Base(pkg))
		}
		image, err := oci.Image(empty.Image, filepath.Join(dir, "layer.tar"), programs, oci.Config{
			Architecture: architecture,
			User:         "65532:65532",
			Labels: map[string]string{"org.opencontainers.image.title": "parley",
				"org.opencontainers.image.licenses": "Apache-2.0"},
		})
		if err != nil {
			return built, fmt.Errorf("image for %s: %w", architecture, err)
		}
		list, err := sbom("parley-linux-"+architecture, programs)
		if err != nil {
			return built, fmt.Errorf("write the SBOM of the image for %s: %w", architecture, err)
		}
		if err := os.WriteFile(filepath.Join(o.out, "parley-linux-"+architecture+".spdx.json"), list, 0o644); err != nil {
			return built, err
		}
		built.each, built.lists = append(built.each, image), append(built.lists, list)
	}
	var err error
	built.index, err = oci.Index(built.each...)
	return built, err
}

// compile builds the programs. The binaries do not depend on the build machine or on the directory
// of the source.
func compile(ctx context.Context, dir, architecture string, packages []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-ldflags=-s -w", "-o",
		dir + string(filepath.Separator)}, packages...)...)
	// These flags are equal to the flags in the Makefile, so that both builds share the build
	// cache.
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-trimpath -buildvcs=false -gcflags=all=-dwarf=false")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build for %s: %w", architecture, err)
	}
	return nil
}
