package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
)

// bucket stores objects by key. A write is atomic. It is durable when put returns.
type bucket interface {
	// list visits the objects with a key prefix, which is empty or ends with a slash.
	list(ctx context.Context, prefix string, visit func(entry)) error
	// open reads an object from an offset. The offset is zero, or less than the size of the object.
	open(ctx context.Context, key string, offset int64) (*object, error)
	// put writes an object if the condition holds. Otherwise, it returns errChanged.
	put(ctx context.Context, key, contentType string, content []byte, when condition) error
	remove(ctx context.Context, key string) error
	removeAll(ctx context.Context, uid string) error
	// ready returns an error while the bucket cannot be used.
	ready(ctx context.Context) error
}

var (
	errNotFound = errors.New("the object does not exist")
	errChanged  = errors.New("the object was changed by another writer")
)

type entry struct {
	key  string
	size int64
	// version is the version of the object. open() returns the object with the same version.
	version string
}

// object is an object that is open for reading. Each write gives the object a new version.
type object struct {
	io.ReadCloser
	size    int64
	version string
}

// condition is the condition of a write. The zero condition always holds.
type condition struct {
	// absent requires that the object does not exist. version, unless empty, is the version that
	// the object must have.
	absent  bool
	version string
}

// openBucket opens file:///dir or s3://bucket?region=….
func openBucket(ctx context.Context, address string) (bucket, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the store is not a valid URL")
	}
	switch {
	case u.Scheme == "s3":
		return openS3(ctx, u)
	case u.Scheme != "file":
		return nil, fmt.Errorf("the scheme of the store is %q: only file:///dir and s3://bucket are supported", u.Scheme)
	case u.Host != "" || u.Path == "":
		return nil, fmt.Errorf("the store is file://%s: the path must begin with /, as in file:///dir", u.Host)
	}
	return openDirectory(u.Path)
}

// readAll reads a small object.
func readAll(ctx context.Context, from bucket, key string) (text []byte, version string, err error) {
	object, err := from.open(ctx, key, 0)
	if err != nil {
		return nil, "", err
	}
	defer object.Close()
	text, err = io.ReadAll(object)
	return text, object.version, err
}
