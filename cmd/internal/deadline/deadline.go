// Package deadline gives HTTP clients a deadline for each piece of a response: a client may be slow
// but must not stall.
package deadline

import (
	"net/http"
	"slices"
	"time"
)

// Piece is the size of a piece in bytes. A client must read each piece of a response within
// Writer.Timeout.
const Piece = 64 << 10

// Writer is a ResponseWriter with a timeout for each piece. The deadline of the last piece does not
// affect the next request, because http.Server clears it.
type Writer struct {
	http.ResponseWriter
	Timeout time.Duration
	// Flushing makes each Write send its text immediately.
	Flushing bool
	// Begun is set by the first Write.
	Begun bool
}

func (w *Writer) Write(text []byte) (written int, err error) {
	w.Begun = true
	w.extend() // an empty Write gives the client time for the end of the response
	for piece := range slices.Chunk(text, Piece) {
		w.extend()
		n, err := w.ResponseWriter.Write(piece)
		if written += n; err != nil {
			return written, err
		}
	}
	if w.Flushing {
		err = w.FlushError()
	}
	return written, err
}

// FlushError implements flushing for http.ResponseController.
func (w *Writer) FlushError() error {
	w.extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *Writer) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.Timeout))
}
