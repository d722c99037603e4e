// Package handover sends a session's data to the archive: the journal while the session runs, and
// the changes and cost at its end. It also restores the journal of a session that lost its
// workspace.
package handover

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
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/record"
)

const (
	// A segment is handed over when its size reaches segmentBytes, or when segmentDelay has passed
	// since its first event.
	segmentDelay = 5 * time.Second
	segmentBytes = 256 << 10
	// flushTimeout bounds how long Flush waits for the archive. An action of the agent may wait for
	// Flush.
	flushTimeout   = 3 * time.Second
	requestTimeout = 20 * time.Second
	// If nothing arrives on a connection for pingDelay, the client pings the archive. If the archive
	// does not answer within pingTimeout, the client closes the connection.
	pingDelay   = 2 * time.Second
	pingTimeout = 5 * time.Second
	// lookTimeout bounds the check for archived events that an existing journal lacks.
	lookTimeout = 5 * time.Second
	// maxDetail is the size in bytes of the longest error response that is quoted.
	maxDetail = 1 << 10
	// firstBackOff and lastBackOff are the shortest and the longest wait after a failure.
	firstBackOff = time.Second
	lastBackOff  = 30 * time.Second
	// firstShortBackOff and lastShortBackOff replace firstBackOff and lastBackOff when a user waits, or
	// when little time is left at the end of a session.
	firstShortBackOff = 100 * time.Millisecond
	lastShortBackOff  = time.Second
)

// Archive is the client for the archived data of one session.
type Archive struct {
	root, token string
	attempt     int
	client      *http.Client
	log         *slog.Logger
}

// New returns the client for a session's archived data, or nil if there is no archive. authorities
// (PEM) are the CAs for the archive's certificate. If authorities is empty, the CAs that this
// process trusts are used.
func New(address, authorities, uid, token string, attempt int, log *slog.Logger) *Archive {
	if address == "" || token == "" {
		return nil
	}
	// This transport ignores HTTP_PROXY and HTTPS_PROXY, which a class may set for its sessions. With
	// HTTP/2, a session that wakes needs one TLS handshake for all its requests to the archive.
	transport := &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second,
		ResponseHeaderTimeout: requestTimeout, ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingDelay, PingTimeout: pingTimeout}}
	if authorities != "" {
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(authorities))
	}
	return &Archive{
		root: strings.TrimSuffix(address, "/") + session.ArchiveRoot + url.PathEscape(uid), token: token, attempt: attempt,
		client: &http.Client{Transport: transport}, log: log,
	}
}

// Errors of the archive. Requests are not retried after ErrGone and errRefused.
var (
	// ErrGone says that the conversation is deleted. The archive then stores no data for it.
	ErrGone    = errors.New("the conversation is deleted")
	errRefused = errors.New("the archive refuses the data")
	// errFull says that the data is too large or that the archive has no room for it.
	errFull = fmt.Errorf("%w: it is too large, or the archive is full", errRefused)
	// errOtherJournal says that the archive holds another journal's events. It is transient: the
	// Keeper requests the archive's position and retries.
	errOtherJournal = errors.New("the archive holds events of another journal")
	// errNotFound says that the archive lacks the requested data, or is too old to know the path.
	errNotFound = errors.New("not in the archive")
)

var refusals = map[int]error{
	http.StatusGone: ErrGone, http.StatusConflict: errOtherJournal, http.StatusRequestEntityTooLarge: errFull,
	http.StatusForbidden: errRefused, http.StatusUnprocessableEntity: errRefused, http.StatusNotFound: errNotFound,
}

func (a *Archive) ask(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	if query == nil {
		query = url.Values{}
	}
	query.Set(session.ArchiveAttempt, strconv.Itoa(a.attempt))
	request, err := http.NewRequestWithContext(ctx, method, a.root+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set(session.TokenHeader, a.token)
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	detail, _ := io.ReadAll(io.LimitReader(response.Body, maxDetail+1))
	_ = response.Body.Close()
	if len(detail) > maxDetail { // a truncated text may end within a secret, which would not be masked
		detail = []byte("(the error text is too long to show)")
	}
	err = fmt.Errorf("the archive answered %d %s", response.StatusCode, bytes.TrimSpace(detail))
	if kind := refusals[response.StatusCode]; kind != nil {
		err = fmt.Errorf("%w: %w", kind, err)
	}
	return nil, err
}

// position sends a request and returns the archive's position from the response. The position is
// the next event that the archive needs.
func (a *Archive) position(ctx context.Context, method, path string, query url.Values,
	body []byte) (position session.ArchivePosition, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := a.ask(ctx, method, path, query, body)
	if err != nil {
		return position, err
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<10)).Decode(&position)
	return position, err
}

// Journal requests the archived journal. The caller closes the reader.
func (a *Archive) Journal(ctx context.Context) (io.ReadCloser, error) {
	response, err := a.ask(ctx, http.MethodGet, session.ArchiveEvents, nil, nil)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// Restore appends the archived events that the journal file lacks. The workspace may be lost, or
// older than the archived journal. If the file is missing, Restore retries until ctx ends, and does
// not sync the new file. If the file exists, Restore tries only once. If early is set, the first
// try uses its result instead of a call of Journal.
func (a *Archive) Restore(ctx context.Context, file string, early func() (io.ReadCloser, error)) error {
	if info, err := os.Stat(file); err == nil && info.Size() > 0 {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		if err := a.complete(ctx, file); err != nil {
			a.log.Warn("cannot check whether the archive has later events", "error", err)
		}
		return nil
	}
	return retry(ctx, firstShortBackOff, lastBackOff, func(ctx context.Context) error {
		request := func() (io.ReadCloser, error) { return a.Journal(ctx) }
		if early != nil {
			request, early = early, nil
		}
		archived, err := request()
		if err == nil {
			defer archived.Close()
			err = record.WriteUnsynced(file, archived, 0o600)
		}
		if err != nil && !errors.Is(err, ErrGone) {
			a.log.Warn("restoring the journal from the archive failed", "error", err)
		}
		return err
	}, ErrGone)
}

// complete appends archived events to an outdated copy of the journal, for example on a volume that
// was restored from a backup. It does not change the file if the archive has another journal's
// events.
func (a *Archive) complete(ctx context.Context, file string) error {
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	has, err := measure(opened)
	if err != nil {
		return err
	}
	position, err := a.position(ctx, http.MethodGet, "", nil, nil)
	if err != nil || has.count == 0 || position.Next <= has.count {
		return err
	}
	response, err := a.ask(ctx, http.MethodGet, session.ArchiveEvents,
		url.Values{session.ArchiveFrom: {strconv.Itoa(has.count - 1)}}, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	rest := bufio.NewReader(response.Body)
	same, err := rest.ReadBytes('\n')
	if err != nil {
		return err
	}
	if !bytes.Equal(has.last, same) || position.Journal != session.JournalName(bytes.TrimSuffix(has.first, newline)) {
		return nil
	}
	a.log.Warn("the workspace is older than the archived journal; resuming from the archive", "events",
		position.Next-has.count)
	return record.Write(file, io.MultiReader(io.NewSectionReader(opened, 0, has.size), rest), 0o600)
}

var newline = []byte("\n")

// extent describes the complete lines of a journal file. An incomplete last line was never
// published, so it is not counted.
type extent struct {
	count       int
	size        int64
	first, last []byte
}

// measure reads the extent of a file. It reads line by line, because the file may be larger than
// the session's memory.
func measure(file io.Reader) (has extent, err error) {
	for line, err := range journal.ReadLines(file) {
		if err != nil || !bytes.HasSuffix(line, newline) {
			return has, err
		}
		has.count++
		has.size += int64(len(line))
		if has.count == 1 {
			has.first = bytes.Clone(line)
		}
		has.last = append(has.last[:0], line...)
	}
	return has, nil
}
