package files

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"os"
	"strings"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

// maxUpload bounds one file of a user.
const maxUpload = 32 << 20

// Upload takes files of a user. Each is whole or not there, and replaces one of the same name.
func (s *Server) Upload(w http.ResponseWriter, r *http.Request) {
	parts, err := r.MultipartReader()
	if err != nil {
		reply.Refuse(w, http.StatusUnprocessableEntity, "the body is no multipart form")
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
			reply.Refuse(w, http.StatusUnprocessableEntity, "files: there are none in the form")
			return
		}
		if errors.Is(err, io.EOF) {
			reply.JSON(w, http.StatusOK, answer)
			return
		}
		if err != nil {
			reply.Refuse(w, http.StatusUnprocessableEntity, "the body is no whole multipart form")
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

// store a file, and say why it is not.
func (s *Server) store(root *os.Root, name string, part *multipart.Part) (reason string) {
	if name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") || hidden(name) || len(name) > 200 {
		return "its name is not one that a file here may have"
	}
	if _, stored := s.storing.LoadOrStore(name, true); stored {
		return "another upload of that name is under way"
	}
	defer s.storing.Delete(name)
	// The same each time, so that what an upload left that was cut off goes with the next.
	aside := fmt.Sprintf(".upload-%x", sha256.Sum256([]byte(name)))
	file, err := root.OpenFile(aside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) { // left by an upload that was cut off
		if err = root.Remove(aside); err == nil {
			file, err = root.OpenFile(aside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		}
	}
	if err != nil {
		return "it cannot be written"
	}
	n, err := io.Copy(file, io.LimitReader(part, maxUpload+1))
	err = errors.Join(err, file.Sync(), file.Close())
	switch {
	case n > maxUpload:
		reason = fmt.Sprintf("it has more than %d MiB", maxUpload>>20)
	case err != nil:
		reason = "it was not read to its end, or cannot be written"
	case root.Rename(aside, name) != nil:
		reason = "there is something else of that name"
	}
	if reason != "" {
		_ = root.Remove(aside)
	}
	return reason
}
