// Package handover hands what a session leaves over to the facade, which keeps it: the journal while
// the session lives, and at its end what changed and what it cost. It gets back a journal whose
// workspace is gone.
package handover

import (
	"bufio"
	"bytes"
	"context"
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
	// delay and enough are when a segment is handed over: so long after its first event, or when so
	// much has come.
	delay  = 5 * time.Second
	enough = 256 << 10
	// requestTimeout bounds one request.
	requestTimeout = 20 * time.Second
	// lookTimeout is how long a session that has a journal waits to hear whether the archive has
	// more of it.
	lookTimeout = 5 * time.Second
	// maxDetail bounds what is repeated of a refusal.
	maxDetail = 1 << 10
	// firstBackOff and lastBackOff are how long to wait after a failure.
	firstBackOff = time.Second
	lastBackOff  = 30 * time.Second
	// firstInsisted and lastInsisted are the same at the end of a session, which has little time.
	firstInsisted = 100 * time.Millisecond
	lastInsisted  = time.Second
)

// Archive of a session, at the facade.
type Archive struct {
	root, token string
	attempt     int
	client      *http.Client
	log         *slog.Logger
}

// New archive of an attempt of the session of a Conversation, by its UID; nil where there is no
// archive.
func New(address, uid, token string, attempt int, log *slog.Logger) *Archive {
	if address == "" || token == "" {
		return nil
	}
	// The agent's proxy is not on the way to the facade.
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second,
		ResponseHeaderTimeout: requestTimeout}
	return &Archive{
		root: strings.TrimSuffix(address, "/") + session.ArchiveRoot + url.PathEscape(uid), token: token, attempt: attempt,
		client: &http.Client{Transport: transport}, log: log,
	}
}

// What is refused: all but the last for good.
var (
	// ErrGone: nobody wants what is left of a conversation that is deleted.
	ErrGone    = errors.New("the conversation is deleted")
	errRefused = errors.New("the archive does not take it")
	// errFull refuses what is too much.
	errFull = fmt.Errorf("%w: it is too large", errRefused)
	// errOther is for now: what the archive has is asked for again.
	errOther = errors.New("the archive has other events")
)

var refusals = map[int]error{
	http.StatusGone: ErrGone, http.StatusConflict: errOther, http.StatusRequestEntityTooLarge: errFull,
	http.StatusForbidden: errRefused, http.StatusUnprocessableEntity: errRefused,
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
	if len(detail) > maxDetail { // a part of it may end within a secret, which would not be known as one
		detail = []byte("and more than is shown")
	}
	err = fmt.Errorf("answered %d %s", response.StatusCode, bytes.TrimSpace(detail))
	if kind := refusals[response.StatusCode]; kind != nil {
		err = fmt.Errorf("%w: %w", kind, err)
	}
	return nil, err
}

// position of the archive: what it wants next.
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

// Restore the journal of a session that has lost its workspace, or whose workspace is older than
// its journal was: what the archive has more than the file is added to it. For one that is not
// there it tries for as long as ctx allows; for one that is, once.
func (a *Archive) Restore(ctx context.Context, file string) error {
	if info, err := os.Stat(file); err == nil && info.Size() > 0 {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		if err := a.complete(ctx, file); err != nil {
			a.log.Warn("whether the archive has more of the journal is not known", "error", err)
		}
		return nil
	}
	return insist(ctx, firstBackOff, lastBackOff, func(ctx context.Context) error {
		response, err := a.ask(ctx, http.MethodGet, session.ArchiveEvents, nil, nil)
		if err == nil {
			defer response.Body.Close()
			err = record.Write(file, response.Body, 0o600)
		}
		if err != nil && !errors.Is(err, ErrGone) {
			a.log.Warn("the journal cannot be had from the archive", "error", err)
		}
		return err
	}, ErrGone)
}

// complete a journal that the archive has more of, as one has whose volume was brought back from a
// copy. One that differs from what is kept is left as it is: it is another's.
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
	a.log.Warn("the workspace is older than the journal that was kept; going on from what was kept", "events",
		position.Next-has.count)
	return record.Write(file, io.MultiReader(io.NewSectionReader(opened, 0, has.size), rest), 0o600)
}

var newline = []byte("\n")

// extent of a journal's file: its whole lines. A line that was not written to its end nobody was
// told of.
type extent struct {
	count       int
	size        int64
	first, last []byte
}

// measure a file, which may be larger than the memory of the session.
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
