package live

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// MaxEvents is the maximum number of events on a page.
	MaxEvents = 100
	// tail is the number of bytes that are still read after an event that is larger than a page.
	// They usually contain the field has_more and the end of the response.
	tail = 64 << 10
)

var errFull = errors.New("the page is full")

// Page reads a page of a session's events. The page has at most limit bytes; a larger event is
// returned alone. Page stops reading the session's response soon after the page is full.
func (s *Sessions) Page(ctx context.Context, c *v1alpha1.Conversation, call Call, limit int64) (*session.EventPage,
	error) {
	response, err := s.Ask(ctx, c, call)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text := &pageReader{from: call.Held.Reader(ctx, response.Body), limit: MaxResponse}
	page, err := readPage(text, limit)
	switch {
	case errors.Is(err, errFull) && page != nil:
		page.HasMore = true
		return page, nil
	case errors.Is(err, errFull):
		return nil, tooLarge
	case err != nil:
		return nil, refusalOr(err, unresponsive)
	}
	return page, nil
}

// pageReader stops at the size limit of a page.
type pageReader struct {
	from        io.Reader
	read, limit int64
}

func (p *pageReader) Read(b []byte) (int, error) {
	if p.read >= p.limit {
		return 0, errFull
	}
	n, err := p.from.Read(b[:min(int64(len(b)), p.limit-p.read)])
	p.read += int64(n)
	return n, err
}

// readPage decodes the events of a page. If the page is full, it returns errFull and the events so
// far, if there are any.
func readPage(text *pageReader, limit int64) (*session.EventPage, error) {
	page := &session.EventPage{Events: []json.RawMessage{}}
	decoder := json.NewDecoder(text)
	if err := expect(decoder, json.Delim('{')); err != nil {
		return nil, err
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		switch name {
		case "events":
			err = readEvents(decoder, page, text, limit)
		case "has_more":
			err = decoder.Decode(&page.HasMore)
		default:
			err = decoder.Decode(&json.RawMessage{})
		}
		if err != nil && len(page.Events) > 0 {
			return page, err
		}
		if err != nil {
			return nil, err
		}
	}
	return page, expect(decoder, json.Delim('}'))
}

func readEvents(decoder *json.Decoder, page *session.EventPage, text *pageReader, limit int64) error {
	if err := expect(decoder, json.Delim('[')); err != nil {
		return err
	}
	for size := int64(0); decoder.More(); {
		var event json.RawMessage
		if len(page.Events) == MaxEvents {
			return errFull
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if size += int64(len(event)); size > limit && len(page.Events) > 0 {
			return errFull
		}
		if page.Events = append(page.Events, event); len(page.Events) == 1 {
			text.limit = max(limit, decoder.InputOffset()) + tail
		}
	}
	return expect(decoder, json.Delim(']'))
}

func expect(decoder *json.Decoder, want json.Delim) error {
	got, err := decoder.Token()
	if err == nil && got != want {
		err = unresponsive
	}
	return err
}
