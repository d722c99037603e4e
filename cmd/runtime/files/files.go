// Package files serves the workspace of a session to its user: what is in it, what changed, and
// what the user puts there. Nothing outside of it can be reached, whatever links the agent makes.
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
	"github.com/parley-dev/parley/cmd/runtime/reply"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// maxEntries bounds the list of a directory.
	maxEntries = 5000
	// writeTimeout is how long a reader may take for each piece that is sent to it.
	writeTimeout = 30 * time.Second
	// compareTimeout bounds the comparison of the files with the commit that the session began
	// with.
	compareTimeout = time.Minute
)

// Server of the files in a directory.
type Server struct {
	// Dir is where the agent works, Base the commit that it began with.
	Dir, Base string
	// Mask takes secrets out of texts.
	Mask func(string) string

	// comparing has an element while a comparison is under way. It is made by the first.
	comparing chan struct{}
	first     sync.Once
	storing   sync.Map // names of files that are uploaded now
}

// List the names in a directory, directories first and with a slash.
func (s *Server) List(w http.ResponseWriter, r *http.Request) {
	s.within(w, r.URL.Query().Get("path"), func(root *os.Root, name string) error {
		// Without waiting for the other end, should it be a pipe.
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

// hidden are the session's records, and git's.
func hidden(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return first == workspace.RecordsDir || first == ".git"
}

// Read a file of text.
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

// Zip sends everything but the session's records. Links are sent as links.
func (s *Server) Zip(w http.ResponseWriter, r *http.Request) {
	s.within(w, "", func(root *os.Root, _ string) error {
		w.Header().Set("Content-Type", "application/zip")
		archive := zip.NewWriter(reply.Patient(w, writeTimeout))
		err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
			switch {
			case r.Context().Err() != nil:
				return r.Context().Err()
			case err != nil:
				return nil //nolint:nilerr // what cannot be read, or is gone meanwhile, is left out
			case name == workspace.RecordsDir && entry.IsDir():
				return fs.SkipDir
			case entry.IsDir():
				return nil
			}
			return addToZip(archive, root, name)
		})
		if err = errors.Join(err, archive.Close()); err != nil {
			panic(http.ErrAbortHandler) // the answer has begun: who reads it must see that it is not whole
		}
		return nil
	})
}

func addToZip(archive *zip.Writer, root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return nil // it is gone meanwhile
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
			return nil // it cannot be read, or is gone meanwhile
		}
		defer file.Close()
		content = file
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return nil // it is gone meanwhile
		}
		content = strings.NewReader(target)
	default:
		return nil // a socket, a pipe or a device has no content
	}
	entry, err := archive.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = io.Copy(entry, content)
	return err
}

// Changes since the commit that the session began with.
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

// Diff is a file before and now.
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

// Patch is the whole difference as text.
func (s *Server) Patch(w http.ResponseWriter, r *http.Request) {
	s.compare(r.Context(), w, func(c *workspace.Changes) error {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, c.Patch(session.MaxPatch, s.Mask))
		return nil
	})
}

// compare one at a time: it reads every file that may have changed. One that is given up goes on
// reading, and until it ends the others wait, as long as they may take themselves.
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
	changes, err := workspace.CompareUntil(ctx, s.Dir, s.Base, func() { <-s.comparing })
	if err != nil {
		refuse(w, err)
		return
	}
	defer changes.Close()
	if err := do(changes); err != nil {
		refuse(w, err)
	}
}

// within does something with a path of the workspace.
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

var errOutside = errors.New("path: it leaves the workspace")

// clean is a path in the workspace. What os.Root would refuse with words of its own is refused with
// ours.
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

// refusals are the answers to errors, in words that say nothing of the node.
var refusals = []struct {
	err    error
	code   int
	detail string
}{
	{fs.ErrNotExist, http.StatusNotFound, "path: there is no such file"},
	{errOutside, http.StatusUnprocessableEntity, errOutside.Error()},
	{unix.ENOTDIR, http.StatusUnprocessableEntity, "path: it is no directory"},
	{workspace.ErrNoFile, http.StatusUnprocessableEntity, "path: " + workspace.ErrNoFile.Error()},
	{workspace.ErrBinary, http.StatusUnsupportedMediaType, workspace.ErrBinary.Error()},
	{workspace.ErrTooLarge, http.StatusRequestEntityTooLarge, workspace.ErrTooLarge.Error()},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, "the files take too long to compare"},
}

func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, workspace.ErrNoRepository) {
		reply.JSON(w, http.StatusNotFound, map[string]string{"error": "Not a git repository"})
		return
	}
	// os.Root refuses what leaves it, by links too, with an error of no type.
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
