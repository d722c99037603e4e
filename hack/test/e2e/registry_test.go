package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// registryAddress is the registry of images named by users. It exists only in the node's
// namespaces.
const registryAddress = "127.0.0.1:5000"

// serveImages runs a registry. Images named by users are always pulled, even if the node has them.
func serveImages(ctx context.Context, dir string, tags ...string) error {
	listener, err := net.Listen("tcp", registryAddress)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	for _, tag := range tags {
		reference, err := name.NewTag(tag, name.Insecure)
		if err != nil {
			return err
		}
		image, err := tarball.ImageFromPath(imageFile(dir, tag)+".tar", &reference)
		if err != nil {
			return fmt.Errorf("read %s: %w", tag, err)
		}
		if err := remote.Write(reference, image, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
	}
	return nil
}

// imageFile returns the path of an image's tarball, without its extension.
func imageFile(dir, tag string) string {
	return filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(tag))
}
