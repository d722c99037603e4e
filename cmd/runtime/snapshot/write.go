package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sys/unix"
)

// Names of a snapshot's parts. The state comes first and the end comes last.
const (
	stateName     = "state.json"
	objectsPrefix = "objects/"
	configName    = "config"
	endName       = "end.json"
)

// maxPart bounds the state, the end and git's configuration, each in bytes.
const maxPart = 32 << 20

// end is the last part of a snapshot.
type end struct {
	Omitted []string `json:"omitted,omitempty"`
}

// errChanged says that a file was replaced, shrank or grew a lot while it was read.
var errChanged = errors.New("a file changed while it was read")

func (c *content) write(ctx context.Context, to io.Writer) error {
	compressed, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := tar.NewWriter(compressed)
	omitted := c.omitted
	defer func() { c.omitted = omitted }()
	if err := writeJSON(w, stateName, c.state); err != nil {
		return err
	}
	if c.clone != nil {
		if err := c.writeObjects(ctx, w); err != nil {
			return err
		}
	}
	for _, f := range c.files {
		if err := c.writeFile(w, f); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if c.clone != nil {
		if err := c.writeConfig(w); err != nil {
			return err
		}
	}
	if err := writeJSON(w, endName, end{Omitted: c.omitted}); err != nil {
		return err
	}
	return errors.Join(w.Close(), compressed.Close())
}

func writeJSON(w *tar.Writer, name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeText(w, name, text)
}

func writeText(w *tar.Writer, name string, text []byte) error {
	if len(text) > maxPart {
		return ErrTooLarge
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(text))
	return err
}

func (c *content) writeObjects(ctx context.Context, w *tar.Writer) error {
	for _, hash := range c.clone.objects {
		object, err := c.clone.repository.Storer.EncodedObject(plumbing.AnyObject, hash)
		if err != nil {
			return fmt.Errorf("read object %s: %w", hash, err)
		}
		reader, err := object.Reader()
		if err != nil {
			return fmt.Errorf("read object %s: %w", hash, err)
		}
		err = w.WriteHeader(&tar.Header{Name: objectsPrefix + object.Type().String() + "/" + hash.String(), Mode: 0o600,
			Size: object.Size()})
		if err == nil {
			_, err = io.Copy(w, reader)
		}
		if err = errors.Join(err, reader.Close(), ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file. It omits a file that disappeared or cannot be read.
func (c *content) writeFile(w *tar.Writer, f file) error {
	root := c.roots[f.place]
	header := &tar.Header{Name: string(f.place) + f.name, Mode: int64(f.info.Mode().Perm()), ModTime: f.info.ModTime(),
		Format: tar.FormatPAX}
	switch {
	case f.info.IsDir():
		header.Typeflag = tar.TypeDir
		return w.WriteHeader(header)
	case f.info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(f.name)
		if err != nil {
			return c.omit(f)
		}
		header.Typeflag, header.Linkname = tar.TypeSymlink, target
		return w.WriteHeader(header)
	}
	// The agent may have replaced the file with a named pipe or a link. With these flags, opening a
	// pipe does not block, and opening a link fails. If the agent replaced a directory of the path
	// with a link, OpenFile does not follow the link out of the directory of root.
	opened, err := root.OpenFile(f.name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return c.omit(f)
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > f.size()+maxBeside {
		return errChanged
	}
	header.Size, header.ModTime = info.Size(), info.ModTime()
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	if copied, err := io.CopyN(w, opened, info.Size()); copied < info.Size() && errors.Is(err, io.EOF) {
		return errChanged
	} else if err != nil {
		return err
	}
	return nil
}

// omit records that the snapshot lacks a file that cannot be read. The snapshot continues, so omit
// always returns nil.
func (c *content) omit(f file) error {
	c.omitted = append(c.omitted, f.name)
	return nil
}

// writeConfig writes the clone's configuration, which may contain other remotes.
func (c *content) writeConfig(w *tar.Writer) error {
	text, err := c.roots[inClone].ReadFile(gitConfig)
	if err != nil {
		return fmt.Errorf("read the configuration of the clone: %w", err)
	}
	return writeText(w, configName, text)
}
