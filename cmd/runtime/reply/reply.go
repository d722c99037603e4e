// Package reply answers HTTP requests: with JSON, or piece by piece.
package reply

import (
	"encoding/json"
	"net/http"
	"time"
)

// Patient gives the reader of an answer some time for each piece of it. The server takes the last
// deadline back when it is done.
func Patient(w http.ResponseWriter, timeout time.Duration) *PatientWriter {
	return &PatientWriter{w, http.NewResponseController(w), timeout}
}

// PatientWriter is a ResponseWriter whose writes time out one by one.
type PatientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (p *PatientWriter) Write(text []byte) (int, error) {
	p.extend()
	return p.ResponseWriter.Write(text)
}

// FlushError is what http.ResponseController flushes with.
func (p *PatientWriter) FlushError() error {
	p.extend()
	return p.control.Flush()
}

func (p *PatientWriter) extend() { _ = p.control.SetWriteDeadline(time.Now().Add(p.timeout)) }

// JSON answers with a status and a value.
func JSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

// Refuse answers with a status, and with what is wrong as clients of the existing service read it.
func Refuse(w http.ResponseWriter, code int, detail string) {
	JSON(w, code, map[string]string{"detail": detail})
}
