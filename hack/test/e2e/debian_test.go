package e2e

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	debianMirror = "http://deb.debian.org/debian"
	// debianPackages lists the packages that a session needs in addition to a shell.
	debianPackages = "git,ca-certificates"
)

// debianBase returns an image of this machine's Debian release, with Git and a shell. Later runs
// use a cached copy.
func debianBase(ctx context.Context, cache string) (v1.Image, error) {
	suite := debianSuite()
	file := filepath.Join(cache, "debian-"+suite+".tar.gz")
	if _, err := os.Stat(file); err != nil {
		if err := bootstrap(ctx, suite, file); err != nil {
			return nil, err
		}
	}
	layer, err := tarball.LayerFromFile(file, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(empty.Image, layer)
}

func debianSuite() string {
	file, err := os.Open("/etc/os-release")
	if err != nil {
		return "stable"
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if suite, found := strings.CutPrefix(scanner.Text(), "VERSION_CODENAME="); found {
			return cmp.Or(strings.Trim(suite, `"`), "stable")
		}
	}
	return "stable"
}

func bootstrap(ctx context.Context, suite, file string) error {
	fmt.Println("building the Debian image (only once)")
	dir, err := os.MkdirTemp(filepath.Dir(file), "debootstrap-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, "root")
	// debootstrap runs in its own Linux namespaces. If it is interrupted, it therefore leaves no
	// mounts or processes behind.
	for _, command := range [][]string{
		{"unshare", "--mount", "--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase", "--include=" +
			debianPackages, suite, root, debianMirror},
		{"tar", "--create", "--gzip", "--file=" + file + ".part", "--directory=" + root, "--numeric-owner",
			"--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./var/cache/apt/*",
			"--exclude=./var/lib/apt/lists/*",
			"--exclude=./usr/share/doc/*", "--exclude=./usr/share/man/*", "--exclude=./usr/share/locale/*", "."},
		{"mv", file + ".part", file},
	} {
		if output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(command[:1], " "), err, output)
		}
	}
	return nil
}
