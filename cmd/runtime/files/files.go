// Package files serves the files and changes in a session's workspace to its user, and accepts
// uploads. It refuses paths outside the workspace, even through links that the agent made.
package files

import (
	"archive/zip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/internal/deadline"
	"github.com/parley-dev/parley/cmd/runtime/reply"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// maxEntries bounds the number of entries in a directory listing.
	maxEntries = 5000
	// writeTimeout is how long a client may take to read each part of a response.
	writeTimeout = 30 * time.Second
	// compareTimeout bounds the comparison of the files with the session's first commit.
	compareTimeout = time.Minute
)

// Server serves the files in a directory.
type Server struct {
	// Dir is the agent's working directory. Base is the session's first commit.
	Dir, Base string
	// Mask masks secrets in texts.
	Mask func(string) string

	// comparing is a semaphore that allows one comparison at a time.
	comparing chan struct{}
	first     sync.Once
	storing   sync.Map // names of uploads in flight
}

// List lists a directory. Directories come first and end with a slash.
func (s *Server) List(w http.ResponseWriter, r *http.Request) {
	s.within(w, r.URL.Query().Get("path"), func(root *os.Root, name string) error {
		// With O_NONBLOCK, opening a named pipe does not block.
		dir, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer dir.Close()
		entries, err := dir.ReadDir(maxEntries)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		directories, others := []string{}, []string{}
		for _, entry := range entries {
			switch at := path.Join(name, entry.Name()); {
			case hidden(at):
			case entry.IsDir():
				directories = append(directories, s.Mask(entry.Name())+"/")
			default:
				others = append(others, s.Mask(entry.Name()))
			}
		}
		slices.Sort(directories)
		slices.Sort(others)
		reply.JSON(w, http.StatusOK, append(directories, others...))
		return nil
	})
}

// hidden reports whether a path belongs to the session's records or to git.
func hidden(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return first == workspace.RecordsDir || first == ".git"
}

// Read serves a text file.
func (s *Server) Read(w http.ResponseWriter, r *http.Request) {
	s.within(w, r.URL.Query().Get("path"), func(root *os.Root, name string) error {
		text, err := workspace.ReadText(root, name)
		if err != nil {
			return err
		}
		reply.JSON(w, http.StatusOK, session.File{Code: s.Mask(text)})
		return nil
	})
}

// Zip serves all files except the session's records. It stores links as links.
func (s *Server) Zip(w http.ResponseWriter, r *http.Request) {
	s.within(w, "", func(root *os.Root, _ string) error {
		w.Header().Set("Content-Type", "application/zip")
		archive := zip.NewWriter(&deadline.Writer{ResponseWriter: w, Timeout: writeTimeout})
		err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
			switch {
			case r.Context().Err() != nil:
				return r.Context().Err()
			case err != nil:
				return nil //nolint:nilerr // unreadable and deleted files are skipped
			case name == workspace.RecordsDir && entry.IsDir():
				return fs.SkipDir
			case entry.IsDir():
				return nil
			}
			return addToZip(archive, root, name)
		})
		if err = errors.Join(err, archive.Close()); err != nil {
			panic(http.ErrAbortHandler) // the response has started: the client must see that it is incomplete
		}
		return nil
	})
}

func addToZip(archive *zip.Writer, root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return nil // deleted meanwhile
	}
	header, err := zip.FileInfoHeader(info)
	if err != nil {
		return err
	}
	header.Name, header.Method = name, zip.Deflate
	var content io.Reader
	switch {
	case info.Mode().IsRegular():
		file, err := root.Open(name)
		if err != nil {
			return nil // unreadable, or deleted meanwhile
		}
		defer file.Close()
		content = file
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return nil // deleted meanwhile
		}
		content = strings.NewReader(target)
	default:
		return nil // sockets, pipes and devices have no content
	}
	entry, err := archive.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = io.Copy(entry, content)
	return err
}

// Changes serves the changes since the session's first commit.
func (s *Server) Changes(w http.ResponseWriter, r *http.Request) {
	s.compare(r.Context(), w, func(c *workspace.Changes) error {
		files := []workspace.Change{}
		for _, file := range c.Files {
			files = append(files, workspace.Change{Kind: file.Kind, Path: s.Mask(file.Path)})
		}
		reply.JSON(w, http.StatusOK, files)
		return nil
	})
}

// Diff serves a file as it was before the session and as it is now.
func (s *Server) Diff(w http.ResponseWriter, r *http.Request) {
	name, err := clean(r.URL.Query().Get("path"))
	if err != nil {
		refuse(w, err)
		return
	}
	s.compare(r.Context(), w, func(c *workspace.Changes) error {
		before, now, err := c.Contents(name)
		if err != nil {
			return err
		}
		reply.JSON(w, http.StatusOK, session.Diff{Modified: s.Mask(now), Original: s.Mask(before)})
		return nil
	})
}

// Patch serves all changes as a patch.
func (s *Server) Patch(w http.ResponseWriter, r *http.Request) {
	s.compare(r.Context(), w, func(c *workspace.Changes) error {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, c.Patch(session.MaxPatch, s.Mask))
		return nil
	})
}

// compare runs one comparison at a time, because a comparison reads every file that may have
// changed. A comparison continues even if its request is cancelled. Other requests wait for the
// running comparison until they time out.
func (s *Server) compare(ctx context.Context, w http.ResponseWriter, do func(*workspace.Changes) error) {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	s.first.Do(func() { s.comparing = make(chan struct{}, 1) })
	select {
	case s.comparing <- struct{}{}:
	case <-ctx.Done():
		refuse(w, ctx.Err())
		return
	}
	changes, err := workspace.Compare(ctx, s.Dir, s.Base, func() { <-s.comparing })
	if err != nil {
		refuse(w, err)
		return
	}
	defer changes.Close()
	if err := do(changes); err != nil {
		refuse(w, err)
	}
}

func (s *Server) within(w http.ResponseWriter, name string, do func(root *os.Root, name string) error) {
	name, err := clean(name)
	if err != nil {
		refuse(w, err)
		return
	}
	root, err := os.OpenRoot(s.Dir)
	if err == nil {
		err = errors.Join(do(root, name), root.Close())
	}
	if err != nil {
		refuse(w, err)
	}
}

var errOutside = errors.New("path: outside of the workspace")

// clean returns a relative path in the workspace. For paths outside the workspace, it returns
// errOutside, because os.Root would return different errors for them.
func clean(name string) (string, error) {
	name = path.Clean(strings.TrimPrefix(name, "./"))
	if path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") || strings.Contains(name, "\x00") {
		return "", errOutside
	}
	if hidden(name) {
		return "", fs.ErrNotExist
	}
	return name, nil
}

// refusals maps errors to responses that reveal nothing about the node.
var refusals = []struct {
	err    error
	code   int
	detail string
}{
	{fs.ErrNotExist, http.StatusNotFound, "path: no such file"},
	{errOutside, http.StatusUnprocessableEntity, errOutside.Error()},
	{unix.ENOTDIR, http.StatusUnprocessableEntity, "path: not a directory"},
	{workspace.ErrNoFile, http.StatusUnprocessableEntity, "path: " + workspace.ErrNoFile.Error()},
	{workspace.ErrBinary, http.StatusUnsupportedMediaType, workspace.ErrBinary.Error()},
	{workspace.ErrTooLarge, http.StatusRequestEntityTooLarge, workspace.ErrTooLarge.Error()},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, "comparing the files takes too long"},
}

func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, workspace.ErrNoRepository) {
		reply.JSON(w, http.StatusNotFound, map[string]string{"error": "Not a git repository"})
		return
	}
	// os.Root refuses links that lead out of the root. Only the text of the error distinguishes this
	// refusal from other errors.
	if failed, ok := errors.AsType[*fs.PathError](err); ok && strings.Contains(failed.Err.Error(), "escapes") {
		err = errOutside
	}
	for _, refusal := range refusals {
		if errors.Is(err, refusal.err) {
			reply.Refuse(w, refusal.code, refusal.detail)
			return
		}
	}
	reply.Refuse(w, http.StatusInternalServerError, "the files cannot be read")
}
