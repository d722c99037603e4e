package archive

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// Reader is what is read of an archive.
type Reader interface {
	// Position is where the events of a conversation end.
	Position(ctx context.Context, uid string) (session.ArchivePosition, error)
	// Events visits those from an id on, each once and in order, until visit returns false.
	Events(ctx context.Context, uid string, from int, visit func(id int, event json.RawMessage) bool) error
	// Earlier visits the events from an id on of a journal that was put aside: 1 is the last of
	// them. ErrNothing says that there is none.
	Earlier(ctx context.Context, uid string, number, from int, visit func(id int, event json.RawMessage) bool) error
	// Ending of a session; ErrNothing where it has not ended.
	Ending(ctx context.Context, uid string) (*session.Ending, error)
}

const (
	// dialTimeout and headTimeout are how long an archive may take to be there and to begin its
	// answer.
	dialTimeout = 3 * time.Second
	headTimeout = 10 * time.Second
	// stallTimeout is how long it may take for each piece of it.
	stallTimeout = 30 * time.Second
	// maxEnding bounds what a session leaves at its end; it is taken in one piece.
	maxEnding = maxSegment
)

// Remote is an archive that another process keeps, as Handler serves it.
type Remote struct {
	root   string
	token  func(uid string) (string, error)
	client *http.Client
}

// NewRemote reads the archive at an address, with a token for each conversation.
func NewRemote(address string, token func(uid string) (string, error)) *Remote {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: headTimeout,
	}
	return &Remote{root: strings.TrimSuffix(address, "/") + session.ArchiveRoot, token: token,
		client: &http.Client{Transport: transport}}
}

// Close what is open to it.
func (r *Remote) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

// get a path of a conversation. What it answers ends when the archive stalls.
func (r *Remote) get(ctx context.Context, uid, path string) (io.ReadCloser, error) {
	token, err := r.token(uid)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.root+url.PathEscape(uid)+path, http.NoBody)
	if err != nil {
		cancel()
		return nil, err
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := r.client.Do(request) //nolint:bodyclose // guarded has it, and who reads closes that
	if err != nil {
		cancel()
		return nil, fmt.Errorf("ask the archive: %w", err)
	}
	body := &guarded{ReadCloser: response.Body, cancel: cancel}
	switch response.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound, http.StatusGone:
		err = ErrNothing
	default:
		err = fmt.Errorf("the archive answered %s", response.Status)
	}
	return nil, errors.Join(err, body.Close())
}

// guarded cancels what takes too long for a piece.
type guarded struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (g *guarded) Read(p []byte) (int, error) {
	timer := time.AfterFunc(stallTimeout, g.cancel)
	defer timer.Stop()
	return g.ReadCloser.Read(p)
}

func (g *guarded) Close() error {
	g.cancel()
	return g.ReadCloser.Close()
}

// Position is where the events of a conversation end.
func (r *Remote) Position(ctx context.Context, uid string) (position session.ArchivePosition, err error) {
	body, err := r.get(ctx, uid, "")
	if err != nil {
		return position, err
	}
	defer body.Close()
	err = json.NewDecoder(io.LimitReader(body, 1<<10)).Decode(&position)
	return position, err
}

// Events visits those from an id on, each once and in order, until visit returns false.
func (r *Remote) Events(ctx context.Context, uid string, from int, visit func(id int,
	event json.RawMessage) bool) error {
	return r.events(ctx, uid, url.Values{session.ArchiveFrom: {strconv.Itoa(from)}}, from, from, visit)
}

// Earlier visits the events from an id on of a journal that was put aside: 1 is the last of them.
// ErrNothing says that there is none.
func (r *Remote) Earlier(ctx context.Context, uid string, number, from int, visit func(id int,
	event json.RawMessage) bool) error {
	return r.events(ctx, uid, url.Values{session.ArchiveEarlier: {strconv.Itoa(number)}}, 0, from, visit)
}

// events whose first has an id, of which those from another on are visited. Between two of them
// little is held, however large they are: who visits them may be slow.
func (r *Remote) events(ctx context.Context, uid string, query url.Values, first, from int, visit func(id int,
	event json.RawMessage) bool) error {
	body, err := r.get(ctx, uid, session.ArchiveEvents+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	reader, visitor := bufio.NewReaderSize(body, 64<<10), whole(visit)
	for id := first; ; id++ {
		l := readLine(reader)
		if errors.Is(l.err, io.EOF) && len(l.part) == 0 {
			return nil
		}
		goOn := true
		if id < from {
			_, err = l.WriteTo(io.Discard)
		} else {
			goOn, err = visitor(id, l)
		}
		switch {
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		case !goOn:
			return nil
		}
	}
}

// Ending of a session; ErrNothing where it has not ended.
func (r *Remote) Ending(ctx context.Context, uid string) (*session.Ending, error) {
	body, err := r.get(ctx, uid, session.ArchiveEnd)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	ending := &session.Ending{}
	if err := json.NewDecoder(io.LimitReader(body, maxEnding)).Decode(ending); err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	return ending, nil
}
