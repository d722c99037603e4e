// Package answer writes the HTTP responses of the facade and the archive: bodies and refusals.
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

// Refusal is an error that is sent to the client.
type Refusal struct {
	Code       int
	Body       any
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return http.StatusText(r.Code) }

// SetHeader sets the Retry-After header if RetryAfter is set.
func (r *Refusal) SetHeader(w http.ResponseWriter) {
	if r.RetryAfter > 0 {
		seconds := int((r.RetryAfter + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
}

// Refuse returns a refusal. Its detail is a sentence or a list of errors.
func Refuse(code int, detail any) *Refusal {
	return &Refusal{Code: code, Body: map[string]any{"detail": detail}}
}

// Later returns a refusal with a Retry-After time.
func Later(code int, detail string, after time.Duration) *Refusal {
	r := Refuse(code, detail)
	r.RetryAfter = after
	return r
}

// Invalid returns a refusal that lists the errors of a request. The status is 413 if an error has
// the type rest.TypeTooLarge, otherwise 422.
func Invalid(details ...rest.Detail) *Refusal {
	code := http.StatusUnprocessableEntity
	if slices.ContainsFunc(details, func(d rest.Detail) bool { return d.Type == rest.TypeTooLarge }) {
		code = http.StatusRequestEntityTooLarge
	}
	return &Refusal{Code: code, Body: rest.Invalid{Detail: details[:min(len(details), rest.MaxDetails)]}}
}

// DetailsOf returns the details of an error that Invalid returned; nil for all other errors.
func DetailsOf(err error) []rest.Detail {
	if refusal, is := errors.AsType[*Refusal](err); is {
		body, _ := refusal.Body.(rest.Invalid)
		return body.Detail
	}
	return nil
}

// CodeOf returns the HTTP status of an error.
func CodeOf(err error) int {
	if refusal, is := errors.AsType[*Refusal](err); is {
		return refusal.Code
	}
	return http.StatusInternalServerError
}

// BadRequest returns a refusal with a message ID, in OpenHands' format.
func BadRequest(msgID, message string) *Refusal {
	return &Refusal{Code: http.StatusBadRequest, Body: map[string]string{"status": "error", "message": message,
		"msg_id": msgID}}
}

// Refusals that several operations use.
var (
	Unauthorized = Refuse(http.StatusUnauthorized, "Unauthorized")
	NotFound     = Refuse(http.StatusNotFound, "Not Found")
	Forbidden    = Refuse(http.StatusForbidden, "The cluster refused this request: a quota or a policy forbids it")
	Unavailable  = Later(http.StatusServiceUnavailable, "The Kubernetes API server does not answer; retry later",
		time.Second)
	internalFailed = Refuse(http.StatusInternalServerError, "Internal Server Error")
)

// LargerThan refuses a body of more than limit bytes.
func LargerThan(limit int64) *Refusal {
	return Refuse(http.StatusRequestEntityTooLarge, "Request body too large: at most "+strconv.FormatInt(limit, 10)+
		" bytes")
}

// ReadBody reads a body of at most limit bytes. If a read fails with a Refusal, ReadBody
// returns this Refusal.
func ReadBody(from io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, io.NopCloser(from), limit))
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	refusal, refused := errors.AsType[*Refusal](err)
	switch {
	case tooLarge:
		return nil, LargerThan(limit)
	case refused:
		return nil, refusal
	case err != nil:
		return nil, Refuse(http.StatusBadRequest, "The body could not be read")
	}
	return body, nil
}

// Created is a response body that Write sends with the status 201.
type Created struct{ Body any }

// Head sets the headers of a response with a body of the given type.
func Head(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// Write sends a response with a body or, if err is not nil, with the error.
func Write(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	Head(w, "application/json")
	if err != nil {
		refusal := internalFailed
		_ = errors.As(err, &refusal)
		code, body = refusal.Code, refusal.Body
		refusal.SetHeader(w)
	}
	if created, is := body.(Created); is {
		code, body = http.StatusCreated, created.Body
	}
	text, isText := body.(json.RawMessage) // already encoded: not copied again
	if !isText {
		var err error
		if text, err = encode(body); err != nil {
			code = http.StatusInternalServerError
			text, _ = encode(internalFailed.Body)
		}
	}
	// The length tells the client when the response is complete.
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // fails only if the client is gone
}

const (
	// After a refusal, at most lingerBytes of the request's body are still read, for at most
	// lingerTime.
	lingerBytes = 32 << 20
	lingerTime  = 5 * time.Second
)

// TurnAway refuses a request before its whole body is read. It then discards the rest of the body,
// within limits, because many clients read the response only after they have sent the whole body.
func TurnAway(w http.ResponseWriter, r *http.Request, err error) {
	connection := http.NewResponseController(w)
	_ = connection.EnableFullDuplex() // if it is not supported, Flush fails
	w.Header().Set("Connection", "close")
	Write(w, nil, err)
	// A client that waits for "100 Continue" has not sent a body, so there is nothing to discard.
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
