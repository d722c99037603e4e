package store

import (
	"context"
	"fmt"
	"io"
)

// modelName is the object with the sealed model settings of a running session.
const modelName = "/model"

// SetModel stores the sealed model settings of a session. The quota does not apply, because only
// the manager writes them.
func (s *Store) SetModel(ctx context.Context, uid string, sealed []byte) error {
	if err := s.bucket.put(ctx, uid+modelName, "application/octet-stream", sealed, condition{}); err != nil {
		return fmt.Errorf("write the model settings: %w", err)
	}
	return nil
}

// Model returns the sealed model settings and their size, or ErrNothing.
func (s *Store) Model(ctx context.Context, uid string) (io.ReadCloser, int64, error) {
	return s.openObject(ctx, uid+modelName, "the model settings")
}
