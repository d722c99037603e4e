package controllers

import (
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
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

const (
	// minPollInterval limits the rate of polls, and with it the rate of large responses.
	minPollInterval = 500 * time.Millisecond
	// maxPollDelay limits the delay before the next poll after a failed poll.
	maxPollDelay = 5 * time.Second
	// pollTimeout limits one poll, which may wait for a change.
	pollTimeout        = (session.MaxTurnWait + 20) * time.Second
	archiveDialTimeout = 3 * time.Second
	// maxTurnList limits the size of a page of outcomes, in bytes.
	maxTurnList = 32 << 20
	// archiveTokenTTL is the validity of a token for the archive. It is long, because the archive's
	// clock may differ.
	archiveTokenTTL = time.Hour
)

// turnPoller reads the outcomes of turns from the archive.
type turnPoller struct {
	url    string
	client *http.Client
	token  func(ctx context.Context) (string, error)
	cache  client.Reader
	// The channel changes receives an event for each Conversation whose outcome changed.
	changes chan event.GenericEvent

	mu sync.RWMutex
	// turns contains the outcomes of the last poll. It is nil before the first poll.
	turns outcomes
}

// outcomes maps the UID of a Conversation to the outcome that its session reported.
type outcomes map[types.UID]session.ReportedTurn

// newTurnPoller returns a poller for the archive at this address. An empty address means that there
// is no archive.
func newTurnPoller(address string, cache client.Reader, token func(context.Context) (string, error),
	dialTLS func(ctx context.Context, network, address string) (net.Conn, error)) *turnPoller {
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: archiveDialTimeout}).DialContext,
		DialTLSContext: dialTLS, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	if address != "" {
		address = strings.TrimSuffix(address, "/") + session.ArchiveTurns
	}
	return &turnPoller{url: address, client: &http.Client{Transport: transport, Timeout: pollTimeout}, token: token,
		cache: cache, changes: make(chan event.GenericEvent)}
}

// reported returns the outcome that a session reported, or nil. It ignores reports from before the
// last start by a user, because Parley's runtime reports again after each start. known is false
// before the first poll of the archive.
func (p *turnPoller) reported(c *v1alpha1.Conversation) (turn *v1alpha1.ConversationTurn, known bool) {
	if p == nil || p.url == "" {
		return nil, true
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if found, has := p.turns[c.UID]; has && found.Attempt >= int(lifecycle.FirstAttempt(c.Status)) {
		return &found.Turn, true
	}
	return nil, p.turns != nil
}

// Start polls until ctx ends. Only the leader polls.
func (p *turnPoller) Start(ctx context.Context) error {
	if p.url == "" {
		return nil
	}
	log := ctrl.LoggerFrom(ctx).WithName("turns")
	delay, tag, failing := minPollInterval, "", false
	for ctx.Err() == nil {
		began := time.Now()
		list, next, err := p.poll(ctx, tag)
		switch {
		case ctx.Err() != nil: // the manager stops; the archive did not fail
		case err != nil && !failing:
			log.Info("Cannot read the outcomes of turns from the archive; retrying", "reason", err.Error())
		case err == nil && failing:
			log.Info("The outcomes of turns can be read again")
		}
		if failing = err != nil; failing {
			delay = min(2*delay, maxPollDelay)
			turnReadFailures.Inc()
		} else {
			delay, tag = minPollInterval, next
		}
		if list != nil {
			p.update(ctx, list)
		}
		select {
		case <-time.After(delay - time.Since(began)):
		case <-ctx.Done():
		}
	}
	return nil
}

// poll reads the outcomes. The result is nil if no outcome changed since the response with this
// ETag. A change on any page changes the ETag, so a change between two pages causes another poll.
func (p *turnPoller) poll(ctx context.Context, tag string) (list outcomes, next string, err error) {
	page, next, err := p.pollPage(ctx, url.Values{session.ArchiveWait: {strconv.Itoa(session.MaxTurnWait)}}, tag)
	if err != nil || page == nil {
		return nil, next, err
	}
	list = outcomes{}
	for list.add(page.Turns); page.Next != ""; list.add(page.Turns) {
		if page, _, err = p.pollPage(ctx, url.Values{session.ArchiveAfter: {page.Next}}, ""); err != nil {
			return nil, "", err
		}
	}
	return list, next, nil
}

// pollPage reads one page of the outcomes. The page is nil if no outcome changed since the response
// with this ETag.
func (p *turnPoller) pollPage(ctx context.Context, query url.Values, tag string) (page *session.TurnList, next string,
	err error) {
	token, err := p.token(ctx)
	if err != nil {
		return nil, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set(session.TokenHeader, token)
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return nil, tag, nil
	default:
		return nil, "", fmt.Errorf("the archive answered %s", response.Status)
	}
	page = &session.TurnList{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxTurnList)).Decode(page); err != nil {
		return nil, "", fmt.Errorf("read the archive's answer: %w", err)
	}
	return page, response.Header.Get("ETag"), nil
}

func (o outcomes) add(page []session.ReportedTurn) {
	for _, reported := range page {
		if turn := session.BoundTurn(&reported.Turn); turn != nil && reported.UID != "" {
			reported.Turn = *turn
			o[types.UID(reported.UID)] = reported
		}
	}
}

// update replaces the outcomes and requests a reconcile of each Conversation whose outcome changed.
func (p *turnPoller) update(ctx context.Context, now outcomes) {
	p.mu.Lock()
	before := p.turns
	p.turns = now
	p.mu.Unlock()
	changed := map[string]bool{}
	if before == nil {
		changed = p.stale(ctx)
	}
	for uid, reported := range now {
		if before != nil && before[uid] != reported {
			changed[reported.Conversation] = true
		}
	}
	for uid, reported := range before {
		if _, has := now[uid]; !has {
			changed[reported.Conversation] = true
		}
	}
	for name := range changed {
		object := &v1alpha1.Conversation{}
		object.Namespace, object.Name, _ = strings.Cut(name, "/")
		select {
		case p.changes <- event.GenericEvent{Object: object}:
		case <-ctx.Done():
			return
		}
	}
}

// stale returns the names of the Conversations whose status does not contain the reported outcome.
func (p *turnPoller) stale(ctx context.Context) map[string]bool {
	names := map[string]bool{}
	var list v1alpha1.ConversationList
	if err := p.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return names // the cache is stopping
	}
	for i := range list.Items {
		c := &list.Items[i]
		if turn, _ := p.reported(c); !ptr.Equal(turn, c.Status.Turn) {
			names[c.Namespace+"/"+c.Name] = true
		}
	}
	return names
}

func (g *gatherer) turnToken(ctx context.Context) (string, error) {
	return g.archiveToken(ctx, session.AudienceTurns, session.TurnsSubject)
}

func (g *gatherer) archiveToken(ctx context.Context, audience, subject string) (string, error) {
	return g.signToken(ctx, audience, subject, archiveTokenTTL)
}

func (g *gatherer) signToken(ctx context.Context, audience, subject string, ttl time.Duration) (string, error) {
	keys, blocker, err := g.signingKeys(ctx)
	switch {
	case err != nil:
		return "", err
	case blocker != nil:
		return "", errors.New(blocker.Message)
	}
	return session.SignTokens(keys.tokens, session.Claims{Audience: audience, UID: subject,
		Expires: g.options.Clock.Now().Add(ttl).Unix()})
}

// mustRecord reports whether the status must be written before anything is created or removed. One
// reason is that the session lacks a model. The manager can notice this only while it starts the
// session, so it writes this fact to the status first. Otherwise, a crash could lose the fact.
func (o gathered) mustRecord(v lifecycle.Verdict) bool {
	status := o.Conversation.Status
	return lifecycle.MustRecord(status, v) || o.NoModel && !lifecycle.FailedWithoutModel(status)
}

// stillLacksModel reports whether a session that failed without a model would fail again. The
// result is also true if the inherited settings or the agent cannot be used.
func (g *gatherer) stillLacksModel(ctx context.Context, c *v1alpha1.Conversation,
	settings *v1alpha1.UserSettings) (bool, error) {
	if !lifecycle.FailedWithoutModel(c.Status) {
		return false, nil
	}
	effective, unready, err := effectiveSettings(ctx, g.cache, settings)
	if unready != nil || err != nil {
		return true, err
	}
	effective = c.Spec.EffectiveSettings(effective)
	if ptr.Deref(effective.LLMModel, "") != "" {
		return false, nil
	}
	agent, unready, err := g.agent(ctx, effective)
	return unready != nil || agent != nil && agent.NeedsModel, err
}

// noteModel notes in the observation whether a session that starts has the model that its agent
// needs. Without a model, the first turn of the session fails.
func noteModel(o *gathered, start *prepared) {
	spec := &o.Conversation.Spec
	needed := start.Agent != nil && start.Agent.NeedsModel && lifecycle.HasWork(spec) && spec.ReplayJSONRef == nil
	o.NoModel = needed && ptr.Deref(start.Settings.LLMModel, "") == ""
	o.ModelSet = !o.NoModel
}
