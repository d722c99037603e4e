// Package reply writes HTTP responses.
package reply

import (
	"encoding/json"
	"net/http"
	"time"
)

// Patient returns a writer that gives the client some time for each part. The server resets the
// last deadline after the request.
func Patient(w http.ResponseWriter, timeout time.Duration) *PatientWriter {
	return &PatientWriter{w, http.NewResponseController(w), timeout}
}

// PatientWriter is a ResponseWriter with a timeout for each write.
type PatientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (p *PatientWriter) Write(text []byte) (int, error) {
	p.extend()
	return p.ResponseWriter.Write(text)
}

// FlushError implements flushing for http.ResponseController.
func (p *PatientWriter) FlushError() error {
	p.extend()
	return p.control.Flush()
}

func (p *PatientWriter) extend() { _ = p.control.SetWriteDeadline(time.Now().Add(p.timeout)) }

// JSON writes a status and a JSON value.
func JSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

// Refuse writes a status and an error in the format of OpenHands.
func Refuse(w http.ResponseWriter, code int, detail string) {
	JSON(w, code, map[string]string{"detail": detail})
}
