// Package answer is how the facade and the archive answer: with a body, or with a refusal that says why.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/rest"
)

// Refusal is an error that the client is told.
type Refusal struct {
	Code       int
	Body       any
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return http.StatusText(r.Code) }

// Refuse with a reason: a sentence, or a list of details.
func Refuse(code int, detail any) *Refusal {
	return &Refusal{Code: code, Body: map[string]any{"detail": detail}}
}

// Later is a refusal of what may succeed after a while.
func Later(code int, detail string, after time.Duration) *Refusal {
	r := Refuse(code, detail)
	r.RetryAfter = after
	return r
}

// Invalid lists all that is wrong with a request. If something in it is too large, whatever else is
// wrong, that is what the status says.
func Invalid(details ...rest.Detail) *Refusal {
	code := http.StatusUnprocessableEntity
	if slices.ContainsFunc(details, func(d rest.Detail) bool { return d.Type == rest.TypeTooLarge }) {
		code = http.StatusRequestEntityTooLarge
	}
	return &Refusal{Code: code, Body: rest.Invalid{Detail: details[:min(len(details), rest.MaxDetails)]}}
}

// DetailsOf are what is wrong with a request, if the error says that something is.
func DetailsOf(err error) []rest.Detail {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return nil
	}
	body, _ := refusal.Body.(rest.Invalid)
	return body.Detail
}

// CodeOf is the status that an error is answered with.
func CodeOf(err error) int {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return http.StatusInternalServerError
}

// Complain with an id, as the existing service does.
func Complain(msgID, message string) *Refusal {
	return &Refusal{Code: http.StatusBadRequest, Body: map[string]string{"status": "error", "message": message,
		"msg_id": msgID}}
}

// Refusals that several operations have.
var (
	Unauthorized = Refuse(http.StatusUnauthorized, "Unauthorized")
	NotFound     = Refuse(http.StatusNotFound, "Not Found")
	Forbidden    = Refuse(http.StatusForbidden, "The cluster refuses this: a quota or a policy stands against it")
	Unavailable  = Later(http.StatusServiceUnavailable, "The Kubernetes API server does not answer; try again",
		time.Second)
	internalFailed = Refuse(http.StatusInternalServerError, "Internal Server Error")
)

// LargerThan refuses a body of more bytes than are read.
func LargerThan(most int64) *Refusal {
	return Refuse(http.StatusRequestEntityTooLarge, "Request body too large: at most "+strconv.FormatInt(most, 10)+
		" bytes")
}

// ReadBody of a request, up to a length. A refusal by the reader is returned as it is.
func ReadBody(from io.Reader, most int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, io.NopCloser(from), most))
	var tooLarge *http.MaxBytesError
	var refusal *Refusal
	switch {
	case errors.As(err, &tooLarge):
		return nil, LargerThan(most)
	case errors.As(err, &refusal):
		return nil, refusal
	case err != nil:
		return nil, Refuse(http.StatusBadRequest, "The body could not be read")
	}
	return body, nil
}

// Created is a body that is answered with 201.
type Created struct{ Body any }

// Head sets the headers of an answer with a body of this type.
func Head(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// Write answers with a body, or with the error where there is one.
func Write(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	Head(w, "application/json")
	if err != nil {
		refusal := internalFailed
		_ = errors.As(err, &refusal)
		code, body = refusal.Code, refusal.Body
		if refusal.RetryAfter > 0 {
			seconds := int((refusal.RetryAfter + time.Second - 1) / time.Second)
			w.Header().Set("Retry-After", strconv.Itoa(seconds))
		}
	}
	if created, is := body.(Created); is {
		code, body = http.StatusCreated, created.Body
	}
	text, isText := body.(json.RawMessage) // which is not held twice more
	if !isText {
		var err error
		if text, err = encode(body); err != nil {
			code = http.StatusInternalServerError
			text, _ = encode(internalFailed.Body)
		}
	}
	// With its length the answer is complete as soon as it is sent.
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client is gone; nobody is left to tell
}

const (
	// lingerBytes and lingerTime are how much a refused client may still send, and for how long.
	lingerBytes = 32 << 20
	lingerTime  = 5 * time.Second
)

// TurnAway a client before its body is read to the end: answer, and then read on for a bounded
// amount and time. Many clients read the answer only after they have sent everything.
func TurnAway(w http.ResponseWriter, r *http.Request, err error) {
	connection := http.NewResponseController(w)
	_ = connection.EnableFullDuplex() // where that is impossible, Flush fails
	w.Header().Set("Connection", "close")
	Write(w, nil, err)
	// A client that waits for permission to send has not sent anything.
	if r.Body == nil || r.Header.Get("Expect") != "" || connection.Flush() != nil ||
		connection.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
}

func encode(body any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(body)
	return text.Bytes(), err
}
