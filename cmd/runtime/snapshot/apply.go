package snapshot

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// Target is the fresh workspace of an attempt that restores a snapshot.
type Target struct {
	Source
	// Fetch fetches the needed commits into the clone. It also fetches the wanted commit if the
	// remote has it.
	Fetch func(ctx context.Context, needed []string, wanted string) error
}

// Applied describes an applied snapshot.
type Applied struct {
	// Base is the commit at which the session started.
	Base string
	// Omitted contains the files and directories that the snapshot lacks, some with the reason.
	Omitted []string
}

var errMalformed = errors.New("the snapshot has an invalid form")

type applier struct {
	Target
	state      state
	repository *git.Repository // nil if the snapshot has all files
	checkedOut bool
	roots      map[place]*os.Root
	// directories are the snapshot's directories. Their modes are set last, because a mode may
	// forbid writing files.
	directories []*tar.Header
	left        int64
	end         *end
}

// apply applies a snapshot to a workspace. After an error, a part of the snapshot remains in the
// workspace.
func apply(ctx context.Context, from io.Reader, to Target) (*Applied, error) {
	decompressed, err := gzip.NewReader(from)
	if err != nil {
		return nil, errMalformed
	}
	a := &applier{Target: to, left: maxContent + maxPart}
	defer func() {
		for _, root := range a.roots {
			_ = root.Close()
		}
	}()
	reader := tar.NewReader(decompressed)
	for first := true; ; first = false {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errMalformed
		}
		if first != (header.Name == stateName) || a.end != nil {
			return nil, errMalformed
		}
		if a.left -= header.Size; a.left < 0 {
			return nil, errMalformed
		}
		if err := a.part(ctx, header, reader); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if a.end == nil {
		return nil, errMalformed
	}
	if err := a.setModes(); err != nil {
		return nil, err
	}
	applied := &Applied{Omitted: a.end.Omitted}
	if a.state.Repository != nil {
		applied.Base = a.state.Repository.Base
	}
	return applied, nil
}

func (a *applier) part(ctx context.Context, header *tar.Header, from io.Reader) error {
	switch name := header.Name; {
	case name == stateName:
		if err := readJSON(from, &a.state); err != nil {
			return err
		}
		return a.prepare(ctx)
	case strings.HasPrefix(name, objectsPrefix):
		return a.writeObject(strings.TrimPrefix(name, objectsPrefix), header.Size, from)
	}
	if err := a.checkOut(ctx); err != nil {
		return err
	}
	switch name := header.Name; {
	case name == endName:
		a.end = &end{}
		return readJSON(from, a.end)
	case name == configName && a.repository != nil:
		text, err := io.ReadAll(io.LimitReader(from, maxPart))
		if err != nil {
			return err
		}
		return a.roots[inClone].WriteFile(gitConfig, text, 0o644)
	}
	for at, root := range a.roots {
		if name, inside := strings.CutPrefix(header.Name, string(at)); inside {
			return a.writeFile(root, at, name, header, from)
		}
	}
	return errMalformed
}

func readJSON(from io.Reader, into any) error {
	if json.NewDecoder(io.LimitReader(from, maxPart)).Decode(into) != nil {
		return errMalformed
	}
	return nil
}

// prepare fetches the commits that the snapshot needs into the fresh clone. If the snapshot itself
// contains all files of the clone, prepare deletes the fresh clone instead.
func (a *applier) prepare(ctx context.Context) error {
	repository := a.state.Repository
	switch {
	case repository == nil && a.Clone != "":
		if err := os.RemoveAll(a.Clone); err != nil {
			return err
		}
	case repository != nil && a.Clone == "":
		return errors.New("the session no longer has a repository")
	case repository != nil:
		if err := a.Fetch(ctx, repository.Needs, repository.Base); err != nil {
			return err
		}
		var err error
		if a.repository, err = openRepository(a.Clone); err != nil {
			return err
		}
	}
	roots, err := openRoots(a.Source)
	if err != nil {
		return err
	}
	a.roots = roots
	if roots[inHome] == nil || a.repository != nil && roots[inClone] == nil {
		return errors.New("the workspace lacks a directory of the snapshot")
	}
	return nil
}

// writeObject stores a git object. name consists of its type and hash.
func (a *applier) writeObject(name string, size int64, from io.Reader) error {
	kind, text, _ := strings.Cut(name, "/")
	parsed, err := plumbing.ParseObjectType(kind)
	if err != nil || a.repository == nil || a.checkedOut {
		return errMalformed
	}
	object, err := dotgit.New(gitDir(a.Clone)).NewObject()
	if err != nil {
		return err
	}
	if err = object.WriteHeader(parsed, size); err == nil {
		_, err = io.Copy(object, from)
	}
	if err = errors.Join(err, object.Close()); err == nil && object.Hash().String() != text {
		return errMalformed
	}
	return err
}

// checkOut checks out the snapshot's commit. It then removes the files of this commit that
// were missing in the saved clone. The caller must have written all git objects.
func (a *applier) checkOut(ctx context.Context) error {
	if a.repository == nil || a.checkedOut {
		return nil
	}
	a.checkedOut = true
	moved, err := setRefs(a.repository, a.state.Repository)
	if err == nil && moved {
		err = workspace.CheckOut(ctx, a.Clone)
	}
	if err != nil {
		return fmt.Errorf("check out the commit of the snapshot: %w", err)
	}
	root := a.roots[inClone]
	if stash := a.state.Repository.Refs[stashRef]; stash != "" {
		// Write a reflog of refs/stash, because git finds stashes only there.
		line := fmt.Sprintf("%s %s Parley <parley> %d +0000\trestored\n", plumbing.ZeroHash, stash, time.Now().Unix())
		err := errors.Join(root.MkdirAll(path.Dir(stashLog), 0o755), root.WriteFile(stashLog, []byte(line), 0o644))
		if err != nil {
			return err
		}
	}
	for _, name := range a.state.Repository.Deleted {
		if !valid(inClone, name) {
			return errMalformed
		}
		if info, err := root.Lstat(name); err != nil || info.IsDir() {
			continue
		}
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// valid reports whether a snapshot may contain a file with this name.
func valid(at place, name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return filepath.IsLocal(name) && path.Clean(name) == name && (at != inClone || top != git.GitDirName)
}

// writeFile writes a file. The type os.Root prevents writes through a link that leads out of the
// root directory.
func (a *applier) writeFile(root *os.Root, at place, name string, header *tar.Header, from io.Reader) error {
	if !valid(at, name) {
		return errMalformed
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(header.Mode).Perm()
	info, err := root.Lstat(name)
	if err == nil && (header.Typeflag != tar.TypeDir || !info.IsDir()) {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		a.directories = append(a.directories, header)
		return root.MkdirAll(name, 0o700)
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
	default:
		return errMalformed
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	// Set the mode explicitly, because the umask would change it.
	if err = errors.Join(err, file.Chmod(mode), file.Close()); err != nil {
		return err
	}
	return root.Chtimes(name, header.ModTime, header.ModTime)
}

// setModes sets the modes of the directories, from the innermost to the outermost.
func (a *applier) setModes() error {
	for _, header := range slices.Backward(a.directories) {
		for at, root := range a.roots {
			name, inside := strings.CutPrefix(header.Name, string(at))
			if !inside {
				continue
			}
			if err := root.Chmod(name, fs.FileMode(header.Mode).Perm()); err != nil {
				return err
			}
		}
	}
	return nil
}
