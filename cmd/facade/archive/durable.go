package archive

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"gocloud.dev/blob"
	"golang.org/x/sys/unix"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	linesType = "application/jsonl"
	// temporary ends the names of files that are being written.
	temporary = ".tmp"
)

// written ends the names of those that this process writes.
var written = "." + rand.Text() + temporary

// write an object whole, or not at all. What is written to a directory is on the disk when it
// returns, and stays there if the machine fails at that moment: who was told that something is kept
// may forget it. fileblob does not see to that, nor that of two who write a new object at once only
// one does.
func (s *Store) write(ctx context.Context, key string, isNew bool, contentType string,
	content func(io.Writer) error) error {
	options := &blob.WriterOptions{IfNotExist: isNew, ContentType: contentType}
	return s.writeIf(ctx, key, options, content, func() error { return nil })
}

// writeIf writes an object unless commit has an error. What takes long is over when it is called: in
// a directory all of it, in a bucket but for the last parts of an upload.
func (s *Store) writeIf(ctx context.Context, key string, options *blob.WriterOptions, content func(io.Writer) error,
	commit func() error) error {
	if err := s.failed(ctx, "write", key); err != nil {
		return err
	}
	if s.dir != "" {
		return writeFile(filepath.Join(s.dir, filepath.FromSlash(key)), s.dir, options.IfNotExist, content, commit)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // what was not closed is not written
	object, err := s.bucket.NewWriter(ctx, key, options)
	if err != nil {
		return err
	}
	err = content(object)
	if err == nil {
		err = commit()
	}
	if err != nil {
		cancel()
		_ = object.Close()
		return err
	}
	return object.Close()
}

// unchanged lets an object be written only in place of the one that is there now: until an upload
// has ended, other facades may put another there. In a directory there are none. Of buckets only S3
// is told; in others there is a short time in which that one is lost.
func (s *Store) unchanged(ctx context.Context, key string) (beforeWrite func(as func(any) bool) error, err error) {
	if s.dir != "" {
		return nil, nil
	}
	now, err := s.bucket.Attributes(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("look at what is written anew: %w", err)
	}
	return func(as func(any) bool) error {
		var upload *transfermanager.UploadObjectInput
		if as(&upload) {
			upload.IfMatch = &now.ETag
		}
		return nil
	}, nil
}

// writeFile writes a file below a root: aside, onto the disk, and then under its name.
func writeFile(path, root string, isNew bool, content func(io.Writer) error, commit func() error) error {
	dir := filepath.Dir(path)
	if err := makeDir(dir, root); err != nil {
		return err
	}
	aside := path + "." + rand.Text() + written
	file, err := os.OpenFile(aside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(aside) // where it was not renamed
	buffer := bufio.NewWriterSize(file, 64<<10)
	err = content(buffer)
	if err == nil {
		err = buffer.Flush()
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := commit(); err != nil {
		return err
	}
	if err := name(aside, path, isNew); err != nil {
		return err
	}
	return syncDir(dir)
}

// removeTemporary removes what processes that were killed had not written to its end. A directory
// has one process at a time; if there is another all the same, what it writes now fails, and is
// handed over again.
func (s *Store) removeTemporary(ctx context.Context) {
	all, err := s.uids(ctx)
	for _, uid := range all {
		if ctx.Err() != nil {
			return
		}
		err = errors.Join(err, filepath.WalkDir(filepath.Join(s.dir, uid), func(path string, entry fs.DirEntry,
			err error) error {
			if err == nil && entry.Type().IsRegular() && strings.HasSuffix(path, temporary) && !strings.HasSuffix(path,
				written) {
				err = os.Remove(path)
			}
			if absent(err) {
				return nil
			}
			return err
		}))
	}
	if err != nil { // it takes room, and does no other harm
		logf.FromContext(ctx).Info("What was not written to its end could not be removed", "reason", err.Error())
	}
}

// name a file. One that is new must not be there: of two who try one is told so.
func name(aside, path string, isNew bool) error {
	if !isNew {
		return os.Rename(aside, path)
	}
	err := os.Link(aside, path)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) { // a file system without links
		err = unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	}
	return err
}

// makeDir makes a directory below a root, and sees to it that it stays.
func makeDir(dir, root string) error {
	if _, err := os.Stat(dir); err == nil || dir == root {
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeDir(parent, root); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(dir string) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer opened.Close()
	return opened.Sync()
}
