// Package archive hands what a session leaves over to the facade, which keeps it: the journal while the session lives, and at its end
// what changed and what it cost. It gets back a journal whose workspace is gone.
package archive

import (
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
)

const (
	// delay and enough are when a segment is handed over: so long after its first event, or when so much has come.
	delay  = 5 * time.Second
	enough = 256 << 10
	// requestTimeout bounds one request.
	requestTimeout = 20 * time.Second
	// firstBackOff and lastBackOff are how long to wait after a failure.
	firstBackOff = time.Second
	lastBackOff  = 30 * time.Second
)

// Archive of a session, at the facade.
type Archive struct {
	root, token string
	client      *http.Client
	log         *slog.Logger
}

// New archive of the session of a Conversation, by its UID; nil where there is no archive.
func New(address, uid, token string, log *slog.Logger) *Archive {
	if address == "" || token == "" {
		return nil
	}
	// The agent's proxy is not on the way to the facade.
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second, ResponseHeaderTimeout: requestTimeout}
	return &Archive{
		root: strings.TrimSuffix(address, "/") + session.ArchiveRoot + url.PathEscape(uid), token: token,
		client: &http.Client{Transport: transport}, log: log,
	}
}

// What the facade refuses for good.
var (
	errGone    = errors.New("the conversation is deleted")
	errRefused = errors.New("the archive does not take it")
)

func (a *Archive) ask(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	target := a.root + path
	if query != nil {
		target += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
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
	detail, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	_ = response.Body.Close()
	err = fmt.Errorf("answered %d %s", response.StatusCode, bytes.TrimSpace(detail))
	switch response.StatusCode {
	case http.StatusGone:
		err = fmt.Errorf("%w: %w", errGone, err)
	case http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil, err
}

// position of the archive: what it wants next.
func (a *Archive) position(ctx context.Context, method, path string, query url.Values, body []byte) (position session.ArchivePosition, err error) {
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

// Restore the journal of a session that has lost its workspace, if the file is not there. It tries for as long as ctx allows.
func (a *Archive) Restore(ctx context.Context, file string) error {
	if info, err := os.Stat(file); err == nil && info.Size() > 0 {
		return nil
	}
	for wait := firstBackOff; ; wait = min(2*wait, lastBackOff) {
		err := a.restore(ctx, file)
		if err == nil || errors.Is(err, errGone) {
			return err
		}
		a.log.Warn("the journal cannot be had from the archive; trying again", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("the journal cannot be had from the archive: %w", err)
		}
	}
}

// restore writes aside and renames: what is there is whole.
func (a *Archive) restore(ctx context.Context, file string) error {
	response, err := a.ask(ctx, http.MethodGet, session.ArchiveEvents, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	aside, err := os.OpenFile(file+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(aside, response.Body)
	if err = errors.Join(err, aside.Sync(), aside.Close()); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// Keeper hands a journal over.
type Keeper struct {
	archive *Archive
	journal *journal.Journal
	// next is the event that the archive wants next; negative while that is not known.
	next int
	// refused is why nothing more is handed over.
	refused error
}

// Keep a journal in the archive.
func (a *Archive) Keep(j *journal.Journal) *Keeper { return &Keeper{archive: a, journal: j, next: -1} }

// Run hands over what comes until ctx ends. A facade that is away loses nothing: it gets what it lacks when it is back.
func (k *Keeper) Run(ctx context.Context) {
	wait := firstBackOff
	for k.refused == nil && ctx.Err() == nil {
		if k.next >= 0 && !k.worthIt(ctx) {
			return
		}
		if err := k.hand(ctx); err != nil && ctx.Err() == nil {
			k.archive.log.Warn("the archive did not take the events; trying again", "error", err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			wait = min(2*wait, lastBackOff)
			continue
		}
		wait = firstBackOff
	}
}

// worthIt waits until there is something to hand over, and a little longer, so that it is more.
func (k *Keeper) worthIt(ctx context.Context) bool {
	select {
	case <-k.journal.More(k.next):
	case <-ctx.Done():
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for k.journal.Size(k.next) < enough {
		select {
		case <-k.journal.More(k.journal.Len()):
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// hand over one segment, after asking what is wanted where that is not known.
func (k *Keeper) hand(ctx context.Context) error {
	first, err := k.journal.Lines(0, 1)
	if err != nil {
		return err
	}
	if len(first) == 0 {
		select { // there is no journal to name yet
		case <-k.journal.More(0):
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}
	name := session.JournalName(first[0])
	if k.next < 0 {
		position, err := k.archive.position(ctx, http.MethodGet, "", nil, nil)
		if err != nil {
			return err
		}
		if position.Journal != "" && position.Journal != name {
			return k.refuse(fmt.Errorf("%w: it has the events of another journal", errRefused))
		}
		k.next = position.Next
	}
	segment, count, err := k.segment()
	if err != nil || count == 0 {
		return err
	}
	query := url.Values{session.ArchiveFrom: {strconv.Itoa(k.next)}, session.ArchiveJournal: {name}}
	position, err := k.archive.position(ctx, http.MethodPost, session.ArchiveEvents, query, segment)
	if errors.Is(err, errRefused) {
		return k.refuse(err)
	}
	if err != nil {
		return err
	}
	k.next = min(position.Next, k.journal.Len())
	return nil
}

// refuse to go on, and say so once.
func (k *Keeper) refuse(err error) error {
	k.refused = err
	k.archive.log.Error("the events are not kept in the archive any more", "error", err)
	return nil
}

// segment of what is wanted next: at least one event, and not much more than enough.
func (k *Keeper) segment() (text []byte, count int, err error) {
	for len(text) < enough {
		lines, err := k.journal.Lines(k.next+count, k.next+count+1)
		if err != nil {
			return nil, 0, err
		}
		if len(lines) == 0 {
			break
		}
		text = append(append(text, lines[0]...), '\n')
		count++
	}
	return text, count, nil
}

// Finish hands the rest over, and what the session leaves besides, for as long as ctx allows. Run must have returned.
func (k *Keeper) Finish(ctx context.Context, ending *session.Ending) error {
	text, err := json.Marshal(ending)
	if err != nil {
		return err
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := k.finish(ctx, text)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errGone), errors.Is(err, errRefused), k.refused != nil:
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

func (k *Keeper) finish(ctx context.Context, ending []byte) error {
	for k.refused == nil && (k.next < 0 || k.next < k.journal.Len()) {
		if k.journal.Len() == 0 {
			return nil
		}
		if err := k.hand(ctx); err != nil {
			return err
		}
	}
	if k.refused != nil {
		return k.refused
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := k.archive.ask(ctx, http.MethodPost, session.ArchiveEnd, nil, ending)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
