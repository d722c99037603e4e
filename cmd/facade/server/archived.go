package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

// isOver reports whether a conversation has ended, so that its data must be read from the archive.
func (s *server) isOver(c *v1alpha1.Conversation) bool {
	return s.options.Archive != nil && errors.Is(live.Running(c), live.NotRunning)
}

func unavailable(ctx context.Context, err error) error {
	logf.FromContext(ctx).Error(err, "Cannot read the archive")
	return answer.Later(http.StatusServiceUnavailable, "The archive cannot be read now; retry later", 2*time.Second)
}

// ending reads the ending of a finished conversation from the archive. The ending may be large:
// copy the needed parts, and do not keep the ending in memory.
func (s *server) ending(ctx context.Context, r request) (*session.Ending, error) {
	done, err := s.budget.Wait(ctx, r.user.ID(), limits.ArchiveReads)
	if err != nil {
		return nil, err
	}
	defer done()
	ending, err := s.options.Archive.Ending(ctx, string(r.conversation.UID))
	switch {
	case errors.Is(err, archiveclient.ErrNothing):
		return nil, live.NotRunning
	case err != nil:
		return nil, unavailable(ctx, err)
	}
	return ending, nil
}

// repositoryEnding returns the ending of a conversation. For a conversation without a repository,
// it returns an error with the status 404.
func (s *server) repositoryEnding(ctx context.Context, r request) (*session.Ending, error) {
	ending, err := s.ending(ctx, r)
	if err == nil && !ending.Repository {
		return nil, &answer.Refusal{Code: http.StatusNotFound, Body: map[string]string{"error": "Not a git repository"}}
	}
	return ending, err
}

// archivedUsage returns the model usage of a finished session. The usage is zero if the session
// left no ending.
func (s *server) archivedUsage(ctx context.Context, r request) (any, error) {
	ending, err := s.ending(ctx, r)
	switch {
	case errors.Is(err, live.NotRunning):
		return session.Usage{}, nil
	case err != nil:
		return nil, err
	}
	return session.Usage{Calls: ending.Calls, InputTokens: ending.InputTokens, OutputTokens: ending.OutputTokens,
		Cost: ending.Cost}, nil
}

func (s *server) archivedChanges(ctx context.Context, r request) (any, error) {
	ending, err := s.repositoryEnding(ctx, r)
	if err != nil {
		return nil, err
	}
	list, size := []session.FileChange{}, 0
	for _, file := range ending.Changes {
		file.Diff, size = nil, size+len(file.Status)+len(file.Path)
		list = append(list, file)
	}
	return list, r.held.Take(int64(size))
}

func (s *server) archivedDiff(ctx context.Context, r request) (any, error) {
	ending, err := s.repositoryEnding(ctx, r)
	if err != nil {
		return nil, err
	}
	path := r.URL.Query().Get("path")
	for _, file := range ending.Changes {
		if file.Path == path && file.Diff == nil {
			return nil, answer.Refuse(http.StatusUnsupportedMediaType, "the file is binary or too large to archive")
		}
		if file.Path == path {
			return file.Diff, r.held.Take(int64(len(file.Diff.Original) + len(file.Diff.Modified)))
		}
	}
	return nil, answer.Refuse(http.StatusNotFound, "path: no changed file has this path")
}

func (s *server) archivedPatch(w http.ResponseWriter, r request) error {
	ending, err := s.repositoryEnding(r.Context(), r)
	if err == nil {
		err = r.held.Take(int64(len(ending.Patch)))
	}
	if err != nil {
		return err
	}
	sendText(w, patchType, strings.NewReader(ending.Patch))
	return nil
}
