package archive

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// object of a bucket.
type object struct {
	key  string
	size int64
	at   time.Time
}

// absent says that something is not there.
func absent(err error) bool {
	return err != nil && (errors.Is(err, fs.ErrNotExist) || gcerrors.Code(err) == gcerrors.NotFound)
}

// list the objects below a prefix that ends with a slash, in the order of their names. Of a
// directory that cannot be read it says so; fileblob takes it for an empty one.
func (s *Store) list(ctx context.Context, prefix string) (all []object, err error) {
	if s.dir != "" {
		return s.listDir(prefix)
	}
	err = s.listBucket(ctx, &blob.ListOptions{Prefix: prefix}, func(found *blob.ListObject) {
		all = append(all, object{found.Key, found.Size, found.ModTime})
	})
	return all, err
}

func (s *Store) listBucket(ctx context.Context, options *blob.ListOptions, visit func(*blob.ListObject)) error {
	for list := s.bucket.List(options); ; {
		found, err := list.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		visit(found)
	}
}

func (s *Store) listDir(prefix string) (all []object, err error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, filepath.FromSlash(prefix)))
	if err != nil && !absent(err) {
		return nil, err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() && !strings.HasSuffix(entry.Name(), temporary) {
			all = append(all, object{prefix + entry.Name(), info.Size(), info.ModTime()})
		}
	}
	return all, nil
}

// named tells what is a conversation's from what else a volume may have, such as lost+found.
var named = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

// uids of all conversations of which something is kept.
func (s *Store) uids(ctx context.Context) (all []string, err error) {
	if s.dir != "" {
		entries, err := os.ReadDir(s.dir)
		for _, entry := range entries {
			if entry.IsDir() && named.MatchString(entry.Name()) {
				all = append(all, entry.Name())
			}
		}
		return all, err
	}
	err = s.listBucket(ctx, &blob.ListOptions{Delimiter: "/"}, func(found *blob.ListObject) {
		if found.IsDir {
			all = append(all, strings.TrimSuffix(found.Key, "/"))
		}
	})
	return all, err
}
