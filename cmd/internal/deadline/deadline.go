// Package deadline gives HTTP clients a deadline for each part of an answer: a client may be slow but
// must not stall.
package deadline

import (
	"net/http"
	"time"
)

// Writer is a ResponseWriter with a timeout for each part. The server resets the last deadline after
// the request.
type Writer struct {
	http.ResponseWriter
	Timeout time.Duration
	// Flushing sends each part at once.
	Flushing bool
	// Begun is set once a part was written.
	Begun bool
}

func (w *Writer) Write(text []byte) (int, error) {
	w.Begun = true
	w.extend()
	n, err := w.ResponseWriter.Write(text)
	if err == nil && w.Flushing {
		err = w.FlushError()
	}
	return n, err
}

// FlushError implements flushing for http.ResponseController.
func (w *Writer) FlushError() error {
	w.extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *Writer) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.Timeout))
}
