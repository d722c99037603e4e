package files

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"strings"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

// maxUpload bounds the size of one uploaded file in bytes.
const maxUpload = 32 << 20

// Upload stores a user's files. Each file is stored completely or not at all. An uploaded file
// replaces an existing file with the same name.
func (s *Server) Upload(w http.ResponseWriter, r *http.Request) {
	parts, err := r.MultipartReader()
	if err != nil {
		reply.Refuse(w, http.StatusUnprocessableEntity, "the body is not a multipart form")
		return
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		refuse(w, err)
		return
	}
	defer root.Close()
	answer := session.Upload{Uploaded: []string{}, Skipped: []session.SkippedFile{}}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) && len(answer.Uploaded)+len(answer.Skipped) == 0 {
			reply.Refuse(w, http.StatusUnprocessableEntity, "files: the form has no files")
			return
		}
		if errors.Is(err, io.EOF) {
			reply.JSON(w, http.StatusOK, answer)
			return
		}
		if err != nil {
			reply.Refuse(w, http.StatusUnprocessableEntity, "the multipart form is incomplete or invalid")
			return
		}
		if part.FormName() != "files" || part.FileName() == "" {
			continue
		}
		name := part.FileName()
		if reason := s.store(root, name, part); reason != "" {
			answer.Skipped = append(answer.Skipped, session.SkippedFile{Name: name, Reason: reason})
			continue
		}
		answer.Uploaded = append(answer.Uploaded, name)
	}
}

// store returns the reason if it cannot store the file.
func (s *Server) store(root *os.Root, name string, part *multipart.Part) (reason string) {
	if name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") || hidden(name) || len(name) > 200 {
		return "this file name is not allowed"
	}
	if _, stored := s.storing.LoadOrStore(name, true); stored {
		return "another upload of a file with this name is in progress"
	}
	defer s.storing.Delete(name)
	// The temporary file's name depends only on the uploaded file's name. The next upload of a file
	// with this name therefore replaces the remains of an interrupted upload.
	aside := fmt.Sprintf(".upload-%x", sha256.Sum256([]byte(name)))
	_ = root.Remove(aside)
	file, err := root.OpenFile(aside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "the file cannot be written"
	}
	n, err := io.Copy(file, io.LimitReader(part, maxUpload+1))
	err = errors.Join(err, file.Sync(), file.Close())
	switch {
	case n > maxUpload:
		reason = fmt.Sprintf("the file is larger than %d MiB", maxUpload>>20)
	case err != nil:
		reason = "the upload was incomplete, or the file cannot be written"
	case root.Rename(aside, name) != nil:
		reason = "a directory has this name"
	}
	if reason != "" {
		_ = root.Remove(aside)
	}
	return reason
}
