package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func (p *facadeUser) do(ctx context.Context, method, path string, header http.Header, body any) (*http.Response,
	error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, header)
	if err := p.authorize(ctx, request.Header); err != nil {
		return nil, err
	}
	response, err := noRedirects.Do(request)
	if err != nil {
		// The text of a url.Error contains the URL of the request: keep only the cause of the
		// error.
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, fmt.Errorf("the facade did not answer: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	var refusal struct {
		Detail   any
		Error    string
		Settings []rest.SettingsName
	}
	_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&refusal)
	if detail, is := refusal.Detail.(string); is {
		refusal.Error = detail
	}
	switch target, err := response.Location(); {
	case response.StatusCode == http.StatusUnauthorized:
		refusal.Error = "the facade rejected " + p.rejected
	case response.StatusCode == http.StatusConflict && len(refusal.Settings) > 0:
		refusal.Error = "you have several UserSettings: " + strings.Join(namesOf(refusal.Settings), ", ") +
			"; choose one with --settings, or with kubectl parley whoami --settings"
	case response.StatusCode/100 == 3 && err == nil:
		// Leave out the query, because it may contain secrets.
		refusal.Error = fmt.Sprintf("the server redirects to %s://%s%s, so it is not the facade (no key "+
			"was sent to the target): "+
			"set the facade's own URL with --facade or $PARLEY_FACADE", target.Scheme, target.Host, target.Path)
	}
	return nil, &refusedError{response.StatusCode, refusal.Error}
}

func (p *facadeUser) read(ctx context.Context, method, path string, into any) error {
	response, err := p.do(ctx, method, path, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

type refusedError struct {
	code   int
	detail string
}

func (e *refusedError) Error() string {
	if e.detail == "" {
		return fmt.Sprintf("the facade answered %d %s", e.code, http.StatusText(e.code))
	}
	return e.detail
}

// noRedirects does not follow redirects, because the target must not receive the key.
var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
	return http.ErrUseLastResponse
}}

// send sends an action of the user. It retries with the same idempotency key, so that the facade
// accepts the action only one time.
func (p *facadeUser) send(ctx context.Context, conversation, action string, args map[string]any) error {
	header := http.Header{session.IdempotencyHeader: {rand.Text()}}
	for try := 1; ; try++ {
		response, err := p.do(ctx, http.MethodPost, "/api/conversations/"+conversation+"/events", header,
			map[string]any{"action": action, "args": args})
		if err == nil {
			return response.Body.Close()
		}
		if refused, ok := errors.AsType[*refusedError](err); try == sendAttempts ||
			ok && refused.code != http.StatusServiceUnavailable {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

const sendAttempts = 3

// lastMessage searches a conversation's last events for the last message with this text, and
// returns its ID. The text in the event may differ, because secrets in it are masked. If no message
// has this text, lastMessage therefore returns the ID of the user's last message.
func (p *facadeUser) lastMessage(ctx context.Context, conversation, text string) (id int, err error) {
	var page struct{ Events []session.Event }
	err = p.read(ctx, http.MethodGet, "/api/conversations/"+conversation+"/events?reverse=true&limit=100", &page)
	id = -1
	for _, e := range page.Events { // newest first
		if !e.IsUserMessage() {
			continue
		}
		if e.Text() == text {
			return e.ID, err
		}
		id = max(id, e.ID)
	}
	return id, err
}

// lastEvent returns the ID of a conversation's last event; -1 if there is none.
func (p *facadeUser) lastEvent(ctx context.Context, conversation string) (int, error) {
	var page struct{ Events []session.Event }
	err := p.read(ctx, http.MethodGet, "/api/conversations/"+conversation+"/events?reverse=true&limit=1", &page)
	if err != nil || len(page.Events) == 0 {
		return -1, err
	}
	return page.Events[0].ID, nil
}

// follow calls take() one time for each event whose ID is greater than last. It reconnects when the
// stream ends. It returns when take() returns true, or when the session has stopped and has no more
// events. But if p.asleep is set and returns true, follow waits until the stopped session starts.
func (p *facadeUser) follow(ctx context.Context, conversation string, last int,
	take func(*session.Event) (done bool)) error {
	emptyStreams := 0
	for {
		before := last
		done, err := p.stream(ctx, conversation, &last, take)
		if p.lacksArchive(err) {
			err, emptyStreams = nil, maxEmptyStreams-1
		}
		refused, isRefused := errors.AsType[*refusedError](err)
		switch over := done || ctx.Err() != nil; {
		case over:
			return nil
		case isRefused && refused.code != http.StatusServiceUnavailable && refused.code != http.StatusTooManyRequests:
			return err
		case err != nil && !p.lost:
			p.lost = true
			p.say("connection lost: %v", err)
		case err == nil:
			emptyStreams++
			if reason := p.stopReason(ctx, conversation); reason == "" || last > before {
				emptyStreams = 0
			} else if emptyStreams >= maxEmptyStreams && !p.awaitStart(ctx, conversation) {
				return fmt.Errorf("%s is not running: %s", conversation, reason)
			}
		}
		select {
		case <-time.After(reconnectDelay):
		case err := <-p.forwardEnded:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// lacksArchive reports whether a stream was refused because the session was stopped and no archive
// has its events. It returns false if p.asleep is nil, because the caller must then treat the
// refusal as an error.
func (p *facadeUser) lacksArchive(err error) bool {
	refused, isRefused := errors.AsType[*refusedError](err)
	return isRefused && refused.code == http.StatusConflict && p.asleep != nil
}

// stopReason returns why a conversation is stopped; empty if it runs or its state is unknown.
func (p *facadeUser) stopReason(ctx context.Context, conversation string) string {
	reason, _ := p.state(ctx, conversation)
	return reason
}

// state returns why a conversation is stopped, and whether it is starting.
func (p *facadeUser) state(ctx context.Context, conversation string) (stopReason string, starting bool) {
	var now rest.Conversation
	err := p.read(ctx, http.MethodGet, "/api/conversations/"+conversation, &now)
	if err != nil || now.Status != string(v1alpha1.StateStopped) {
		return "", err == nil && now.Status == string(v1alpha1.StateStarting)
	}
	return ptr.Deref(now.Reason, "Stopped") + ": " + ptr.Deref(now.Message, "start it to continue"), false
}

// awaitStart waits until a stopped session has started. It returns false if p.asleep is nil, or if
// p.asleep reports that nothing will start the session.
func (p *facadeUser) awaitStart(ctx context.Context, conversation string) bool {
	if p.asleep == nil {
		return false
	}
	for {
		reason, starting := p.state(ctx, conversation)
		if !p.asleep(reason) {
			return false
		}
		if reason == "" && !starting {
			return true // the session has started, or its state is unknown
		}
		select {
		case <-time.After(reconnectDelay):
		case <-ctx.Done():
			return true
		}
	}
}

// stream calls take() for each event of one stream, until take() returns true or the stream ends.
// The end of the stream is not an error.
func (p *facadeUser) stream(ctx context.Context, conversation string, last *int,
	take func(*session.Event) bool) (done bool, err error) {
	header := http.Header{"Last-Event-ID": {strconv.Itoa(*last)}}
	path := "/api/conversations/" + conversation + "/events/stream"
	if p.preview != nil {
		path += "?" + session.PreviewsParameter + "=true"
	}
	response, err := p.do(ctx, http.MethodGet, path, header, nil)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if p.lost {
		p.lost = false
		p.say("reconnected")
	}
	lines := bufio.NewReader(response.Body)
	isPreview := false
	for !done {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		data, found := strings.CutPrefix(line, "data: ")
		if !found {
			isPreview = line == "event: "+session.PreviewEvent+"\n"
			continue
		}
		if isPreview {
			var preview session.Preview
			if err := json.Unmarshal([]byte(data), &preview); err != nil {
				return false, err
			}
			if p.preview != nil {
				p.preview(&preview)
			}
			continue
		}
		event, err := session.ParseEvent([]byte(data))
		if err != nil {
			return false, err
		}
		*last = event.ID
		done = take(&event)
	}
	return true, nil
}
