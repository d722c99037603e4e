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

// registryAddress is the address of the registry with the images that users choose. The registry
// runs in the network namespace of the node.
const registryAddress = "127.0.0.1:5000"

// serveImages runs a registry with the images of these tags. It is not enough to load the images
// into the node, because sessions always pull an image that a user chose.
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

func imageFile(dir, tag string) string {
	return filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(tag))
}
