// Package archiveclient reads the data of finished sessions from the archive.
package archiveclient

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/live"
)

const (
	dialTimeout = 3 * time.Second
	// headerTimeout limits the wait for the start of a response. stallTimeout limits the wait for
	// each further part of the response.
	headerTimeout = 10 * time.Second
	stallTimeout  = 30 * time.Second
)

// ErrNothing reports that the archive does not have the requested data of a Conversation.
var ErrNothing = errors.New("not in the archive")

// Reader reads an archive.
type Reader interface {
	// Position returns the position at which a Conversation's archived events end.
	Position(ctx context.Context, uid string) (session.ArchivePosition, error)
	// Events visits the events from an ID on, in order, until visit returns false. The argument
	// earlier selects the journal: 0 is the current journal, 1 the journal before it, and so on.
	// Events returns ErrNothing if the selected journal does not exist.
	Events(ctx context.Context, uid string, earlier, from int, visit func(id int, event json.RawMessage) bool) error
	// Ending returns the ending of a session, or ErrNothing if the session has not ended.
	Ending(ctx context.Context, uid string) (*session.Ending, error)
}

// Client is a Reader of the archive at an address.
type Client struct {
	root   string
	token  func(uid string) (string, error)
	client *http.Client
}

// New returns a client of the archive at an address. The archive's certificate must be signed by an
// authority in the file caFile or, if caFile is empty, by an authority of the system. token returns
// the token for a Conversation.
func New(address, caFile string, token func(uid string) (string, error)) *Client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{DialContext: dialer.DialContext,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: headerTimeout,
	}
	if caFile != "" {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			text, err := os.ReadFile(caFile) // read each time, because the kubelet replaces it
			if err != nil {
				return nil, err
			}
			config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
			config.RootCAs.AppendCertsFromPEM(text)
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
		}
	}
	return &Client{root: strings.TrimSuffix(address, "/"), token: token,
		client: &http.Client{Transport: transport}}
}

// get sends a GET request for data of a Conversation. Reading the response fails if the archive
// stalls.
func (c *Client) get(ctx context.Context, uid, path string) (io.ReadCloser, error) {
	token, err := c.token(uid)
	if err != nil {
		return nil, err
	}
	return c.getWith(ctx, token, session.ArchiveRoot+url.PathEscape(uid)+path)
}

func (c *Client) getWith(ctx context.Context, token, path string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.root+path, http.NoBody)
	if err != nil {
		cancel()
		return nil, err
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := c.client.Do(request) //nolint:bodyclose // the caller closes it through Guarded
	if err != nil {
		cancel()
		return nil, fmt.Errorf("call the archive: %w", err)
	}
	body := &live.Guarded{ReadCloser: response.Body, Cancel: cancel, IdleTimeout: stallTimeout}
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

func (c *Client) read(ctx context.Context, uid, path string, limit int64, into any) error {
	body, err := c.get(ctx, uid, path)
	if err != nil {
		return err
	}
	return decode(body, limit, into)
}

func decode(body io.ReadCloser, limit int64, into any) error {
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, limit)).Decode(into); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	return nil
}

// Position returns the position at which a Conversation's archived events end.
func (c *Client) Position(ctx context.Context, uid string) (position session.ArchivePosition, err error) {
	err = c.read(ctx, uid, "", 1<<10, &position)
	return position, err
}

// Events visits the events of a journal. It reads one event at a time, so that few events are in
// memory while a slow visit function runs.
func (c *Client) Events(ctx context.Context, uid string, earlier, from int,
	visit func(id int, event json.RawMessage) bool) error {
	query := url.Values{session.ArchiveEarlier: {strconv.Itoa(earlier)}, session.ArchiveFrom: {strconv.Itoa(from)}}
	body, err := c.get(ctx, uid, session.ArchiveEvents+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	reader := bufio.NewReaderSize(body, 64<<10)
	for id := from; ; id++ {
		line, err := reader.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
			fallthrough
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		}
		if !visit(id, bytes.TrimSuffix(line, []byte("\n"))) {
			return nil
		}
	}
}

// Ending returns the ending of a session, or ErrNothing if the session has not ended.
func (c *Client) Ending(ctx context.Context, uid string) (*session.Ending, error) {
	ending := &session.Ending{}
	return ending, c.read(ctx, uid, session.ArchiveEnd, session.MaxArchived, ending)
}

// UsageReader reads the costs of an owner in a month, such as 2026-01. An empty month is the
// current month.
type UsageReader func(ctx context.Context, owner, month string) (session.SpendUsage, error)

// Usage returns a reader of the archive's ledger. token returns the token for the ledger.
func (c *Client) Usage(token func() (string, error)) UsageReader {
	return func(ctx context.Context, owner, month string) (usage session.SpendUsage, err error) {
		signed, err := token()
		if err != nil {
			return usage, err
		}
		query := url.Values{session.UsageOwner: {owner}}
		if month != "" {
			query.Set(session.UsageMonth, month)
		}
		body, err := c.getWith(ctx, signed, session.ArchiveUsage+"?"+query.Encode())
		if err != nil {
			return usage, err
		}
		return usage, decode(body, session.MaxArchived, &usage)
	}
}
