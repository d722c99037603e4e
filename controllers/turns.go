package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	// minPollInterval limits the rate of polls, and with it the rate of large answers.
	minPollInterval = 500 * time.Millisecond
	// maxPollDelay limits the delay of a poll after failures.
	maxPollDelay = 5 * time.Second
	// pollTimeout limits one poll, which may wait for a change.
	pollTimeout = (session.MaxTurnWait + 20) * time.Second
	// maxTurnList limits the bytes of an answer.
	maxTurnList = 16 << 20
	// turnTokenTTL is the validity of the token of a poll.
	turnTokenTTL = time.Minute
)

// turnPoller reads from the archive the outcomes of turns that sessions reported. It holds only
// Conversations that have an outcome.
type turnPoller struct {
	url    string
	client *http.Client
	// token returns the token of a poll.
	token func(ctx context.Context) (string, error)
	// cache holds the Conversations.
	cache client.Reader
	// changes has a request for each Conversation whose outcome changed.
	changes chan event.GenericEvent

	mu     sync.RWMutex
	polled bool
	list   outcomes
}

// outcomes are the outcomes of one answer, by UID.
type outcomes struct {
	turns map[types.UID]session.ReportedTurn
	// incomplete says that Conversations without an outcome in this answer may have one.
	incomplete bool
}

// newTurnPoller returns a poller of the archive at a URL, which may be empty.
func newTurnPoller(url string, cache client.Reader, token func(context.Context) (string, error)) *turnPoller {
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	if url != "" {
		url = strings.TrimSuffix(url, "/") + session.ArchiveTurns
	}
	return &turnPoller{url: url, client: &http.Client{Transport: transport, Timeout: pollTimeout}, token: token,
		cache: cache, changes: make(chan event.GenericEvent)}
}

// reported returns the outcome that a session reported; nil if there is none. It is not known before
// the first poll. Without an archive, no session reports.
func (p *turnPoller) reported(uid types.UID) (turn *v1alpha1.ConversationTurn, known bool) {
	if p == nil || p.url == "" {
		return nil, true
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if found, has := p.list.turns[uid]; has {
		return &found.Turn, true
	}
	return nil, p.polled && !p.list.incomplete
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
		case ctx.Err() != nil: // the error is not the archive's
		case err != nil && !failing:
			log.Info("Cannot read the outcomes of turns from the archive; retrying", "reason", err.Error())
		case err == nil && failing:
			log.Info("The outcomes of turns can be read again")
		}
		if failing = err != nil; failing {
			delay = min(2*delay, maxPollDelay)
		} else {
			delay, tag = minPollInterval, next
		}
		if list != nil {
			p.update(ctx, *list)
		}
		select {
		case <-time.After(delay - time.Since(began)):
		case <-ctx.Done():
		}
	}
	return nil
}

// poll reads the outcomes. The result is nil if they still have the tag.
func (p *turnPoller) poll(ctx context.Context, tag string) (list *outcomes, next string, err error) {
	token, err := p.token(ctx)
	if err != nil {
		return nil, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		p.url+"?"+session.ArchiveWait+"="+strconv.Itoa(session.MaxTurnWait), http.NoBody)
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
	var answer session.TurnList
	if err := json.NewDecoder(io.LimitReader(response.Body, maxTurnList)).Decode(&answer); err != nil {
		return nil, "", fmt.Errorf("read the archive's answer: %w", err)
	}
	return collect(answer), response.Header.Get("ETag"), nil
}

// collect returns the valid outcomes of an answer, within the limit.
func collect(answer session.TurnList) *outcomes {
	all := answer.Turns[:min(len(answer.Turns), session.MaxTurns)]
	list := &outcomes{turns: make(map[types.UID]session.ReportedTurn, len(all)),
		incomplete: answer.Incomplete || len(all) < len(answer.Turns)}
	for _, reported := range all {
		if turn := session.BoundTurn(&reported.Turn); turn != nil && reported.UID != "" {
			reported.Turn = *turn
			list.turns[types.UID(reported.UID)] = reported
		}
	}
	return list
}

// update replaces the outcomes and requests a reconcile of each Conversation whose outcome changed.
func (p *turnPoller) update(ctx context.Context, now outcomes) {
	p.mu.Lock()
	before, first := p.list, !p.polled
	p.list, p.polled = now, true
	p.mu.Unlock()
	changed := map[string]bool{}
	if first {
		changed = p.stale(ctx)
	}
	for uid, reported := range now.turns {
		if old, had := before.turns[uid]; !first && (!had || old.Turn != reported.Turn) {
			changed[reported.Conversation] = true
		}
	}
	for uid, reported := range before.turns {
		if _, has := now.turns[uid]; !has {
			changed[reported.Conversation] = true
		}
	}
	if before.incomplete && !now.incomplete {
		for name := range p.stale(ctx) {
			changed[name] = true
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

// stale returns the Conversations whose status does not have the known outcome.
func (p *turnPoller) stale(ctx context.Context) map[string]bool {
	names := map[string]bool{}
	var list v1alpha1.ConversationList
	if err := p.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return names // the cache is stopping
	}
	for i := range list.Items {
		c := &list.Items[i]
		if turn, _ := p.reported(c.UID); !ptr.Equal(turn, c.Status.Turn) {
			names[c.Namespace+"/"+c.Name] = true
		}
	}
	return names
}

// turnToken returns the manager's token for the archive's list of outcomes.
func (g *gatherer) turnToken(ctx context.Context) (string, error) {
	key, _, blocker, err := g.signingKey(ctx)
	switch {
	case err != nil:
		return "", err
	case blocker != nil:
		return "", errors.New(blocker.Message)
	}
	return session.SignToken(key, session.Claims{Audience: session.AudienceTurns, UID: session.TurnsSubject,
		Expires: g.options.Clock.Now().Add(turnTokenTTL).Unix()})
}

// mustRecord reports whether the status must be written before anything is created or removed. The
// lack of a model is known only at a start, and a crash must not lose it.
func (o gathered) mustRecord(v lifecycle.Verdict) bool {
	status := o.Conversation.Status
	return lifecycle.MustRecord(status, v) || o.NoModel && !lifecycle.FailedWithoutModel(status)
}

// noteModel notes in the observation whether a start has the model that its agent needs. Without
// one, its first turn fails.
func noteModel(o *gathered, start *prepared) {
	if start.unready != nil || start.blocked != nil || start.Settings == nil {
		return
	}
	spec := &o.Conversation.Spec
	needed := start.Agent != nil && start.Agent.NeedsModel && lifecycle.HasWork(spec) && spec.ReplayJSONRef == nil
	o.NoModel = needed && ptr.Deref(start.Settings.LLMModel, "") == ""
	o.ModelSet = !o.NoModel
}
