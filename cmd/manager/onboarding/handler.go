package onboarding

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/identity"
)

// Path is the path of the handler on the webhook's server.
const Path = "/onboard"

// These limits protect the manager, because every pod that reaches the webhook can send requests.
const (
	// maxBody is the largest body, in bytes.
	maxBody = 64 << 10
	// bodyTimeout limits the time to read a body.
	bodyTimeout = 5 * time.Second
	// maxInProgress limits the requests whose token is being verified or whose UserSettings are being
	// created.
	maxInProgress = 32
	// personRate is the number of requests per second that one person may send on average. personBurst
	// is the number of requests that one person may send without a pause.
	personRate  = 0.2
	personBurst = 10
)

var (
	invalidToken = answer.Refuse(http.StatusUnauthorized, "The token is invalid or has expired")
	noProvider   = answer.Later(http.StatusServiceUnavailable, "The OpenID provider does not answer; retry later",
		5*time.Second)
	busy = answer.Later(http.StatusServiceUnavailable, "Too many requests in flight; retry later", time.Second)
)

// ServeHTTP onboards the person whom the ID token in the request names.
func (o *Onboarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer.Write(w, nil, answer.Refuse(http.StatusMethodNotAllowed, "Method Not Allowed"))
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	result, err := o.serve(r)
	answer.Write(w, result, err)
}

func (o *Onboarder) serve(r *http.Request) (*Answer, error) {
	token, err := tokenOf(r)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	select {
	case o.slots <- struct{}{}:
		defer func() { <-o.slots }()
	case <-ctx.Done():
		return nil, busy
	}
	person, err := o.provider.Verify(ctx, token)
	switch {
	case errors.Is(err, identity.ErrUnavailable):
		outcomes.WithLabelValues(outcomeUnavailable).Inc()
		logf.FromContext(ctx).Info("Cannot verify an ID token", "problem", err.Error())
		return nil, noProvider
	case err != nil:
		outcomes.WithLabelValues(outcomeUnauthorized).Inc()
		return nil, invalidToken
	}
	if err := o.persons.Count(person.Username, 1); err != nil {
		return nil, err
	}
	result, err := o.Onboard(ctx, person)
	if err != nil {
		logf.FromContext(ctx).Error(err, "Cannot onboard a person")
		return nil, answer.Unavailable
	}
	return result, nil
}

func tokenOf(r *http.Request) (string, error) {
	body, err := answer.ReadBody(r.Body, maxBody)
	if err != nil {
		return "", err
	}
	var request struct {
		Token string `json:"token"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&request) != nil || request.Token == "" {
		return "", answer.Refuse(http.StatusBadRequest, `The body must be {"token": "<ID token>"}`)
	}
	return request.Token, nil
}
