package conversations

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	defaultLimit = 20
	maxLimit     = 100
	maxTitle     = 100
	// maxQuery limits the characters of a search text. A search reads only the first maxSearched
	// bytes of each title, because kubectl can set a title of any length.
	maxQuery    = 200
	maxSearched = 1000
)

type page struct {
	limit      int
	after      *position
	repository string
	trigger    string
	// search is a text in lower case that the title or the repository must contain.
	search string
	// state selects conversations in one state; empty selects all. attention selects only
	// conversations that need the user's attention.
	state     v1alpha1.ConversationState
	attention bool
}

type position struct {
	created time.Time
	name    string
}

// compare returns a negative number if p is before q in the list. Newer conversations come first.
func (p position) compare(q position) int {
	return cmp.Or(q.created.Compare(p.created), strings.Compare(p.name, q.name))
}

func (p position) id() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.created.UnixNano(), 36) + "." + p.name))
}

func parsePosition(id string) (*position, bool) {
	text, err := base64.RawURLEncoding.DecodeString(id)
	created, name, found := strings.Cut(string(text), ".")
	nanoseconds, parseErr := strconv.ParseInt(created, 36, 64)
	if err != nil || !found || parseErr != nil || !rest.ConversationID.MatchString(name) {
		return nil, false
	}
	return &position{time.Unix(0, nanoseconds), name}, true
}

func decodePage(query url.Values) (page, []rest.Detail) {
	var details []rest.Detail
	fail := func(name, kind, msg string) {
		details = append(details, rest.Detail{Type: kind, Loc: rest.Location{"query", name}, Msg: msg})
	}
	p := page{limit: defaultLimit, repository: query.Get("selected_repository"),
		trigger: query.Get("conversation_trigger"), search: strings.ToLower(strings.TrimSpace(query.Get("query"))),
		state: v1alpha1.ConversationState(query.Get("status"))}
	if limit := query.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		switch {
		case err != nil:
			fail("limit", "int_parsing", "Input should be a valid integer, unable to parse string as an integer")
		case n < 1:
			fail("limit", "greater_than_equal", "Input should be greater than or equal to 1")
		case n > maxLimit:
			fail("limit", "less_than_equal", "Input should be less than or equal to 100")
		}
		p.limit = n
	}
	if id := query.Get("page_id"); id != "" {
		var valid bool
		if p.after, valid = parsePosition(id); !valid {
			fail("page_id", "value_error", "Value error, this is not a next_page_id of an earlier response")
		}
	}
	if !slices.Contains([]string{"", rest.TriggerGUI, rest.TriggerSuggestedTask, rest.TriggerMicroagent}, p.trigger) {
		fail("conversation_trigger", "enum", "Input should be 'gui', 'suggested_task' or 'microagent_management'")
	}
	if utf8.RuneCountInString(p.search) > maxQuery {
		fail("query", "string_too_long", "String should have at most 200 characters")
	}
	if !slices.Contains([]v1alpha1.ConversationState{"", v1alpha1.StateStarting, v1alpha1.StateRunning,
		v1alpha1.StateStopped}, p.state) {
		fail("status", "enum", "Input should be 'STARTING', 'RUNNING' or 'STOPPED'")
	}
	if word := query.Get("attention"); word != "" {
		var known bool
		if p.attention, known = rest.Truth(word); !known {
			fail("attention", "bool_parsing", "Input should be true or false")
		}
	}
	return p, details
}

// List returns a page of the user's conversations.
func (s *Service) List(ctx context.Context, u *auth.User, query url.Values) (any, error) {
	p, details := decodePage(query)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	var result rest.ConversationPage
	if err := s.Cluster.ConversationsOf(ctx, u.Settings,
		func(all []v1alpha1.Conversation) { result = p.take(all) }); err != nil {
		return nil, cluster.Refusal(ctx, err, nil)
	}
	return result, nil
}

// take returns a page of the conversations that match the filters. The page starts after the last
// conversation of the previous page, not at an index. With an index, the creation or deletion of a
// conversation would make clients skip or repeat other conversations.
func (p page) take(all []v1alpha1.Conversation) rest.ConversationPage {
	type entry struct {
		position
		conversation *v1alpha1.Conversation
	}
	var entries []entry // the entries of the page, and one more entry
	for i := range all {
		c := &all[i]
		at := position{createdAt(c), c.Name}
		if p.after != nil && p.after.compare(at) >= 0 || len(entries) > p.limit && entries[p.limit].compare(at) < 0 ||
			!p.includes(c) {
			continue
		}
		place, _ := slices.BinarySearchFunc(entries, at, func(e entry, at position) int { return e.compare(at) })
		entries = slices.Insert(entries[:min(len(entries), p.limit)], place, entry{at, c})
	}
	result := rest.ConversationPage{Results: []rest.Conversation{}}
	if len(entries) > p.limit {
		entries = entries[:p.limit]
		result.NextPageID = ptr.To(entries[p.limit-1].id())
	}
	for _, e := range entries {
		result.Results = append(result.Results, view(e.conversation))
	}
	return result
}

func (p page) includes(c *v1alpha1.Conversation) bool {
	repository, _ := c.Spec.EffectiveRepository()
	return (p.repository == "" || p.repository == repository) && (p.trigger == "" || p.trigger == trigger(c)) &&
		(p.state == "" || p.state == stateOf(c)) && (!p.attention || needsAttention(c)) &&
		(p.search == "" || contains(repository, p.search) || p.inTitle(c))
}

func (p page) inTitle(c *v1alpha1.Conversation) bool {
	title, _ := wholeTitle(c)
	return contains(title, p.search)
}

// contains searches the beginning of a text and ignores its case. The search text must be in lower
// case.
func contains(text, search string) bool {
	return strings.Contains(strings.ToLower(text[:min(len(text), maxSearched)]), search)
}

// needsAttention reports whether a conversation failed or waits for the user. It is false if a
// restart was requested and the operator has not seen the request yet.
func needsAttention(c *v1alpha1.Conversation) bool { return c.NeedsAttention() && !startsAgain(c) }

func view(c *v1alpha1.Conversation) rest.Conversation {
	repository, provider := c.Spec.EffectiveRepository()
	link, number := pullRequest(c)
	return rest.Conversation{
		ConversationID:     c.Name,
		Title:              titleOf(c),
		Status:             string(stateOf(c)),
		ConversationStatus: string(stateOf(c)),
		Reason:             orNull(c.Status.Reason),
		Message:            orNull(c.Status.Message),
		Turn:               turnOf(c),
		NeedsAttention:     needsAttention(c),
		SelectedRepository: orNull(repository),
		SelectedBranch:     c.Spec.SelectedBranch,
		GitProvider:        orNull(string(provider)),
		RuntimeStatus:      runtimeStatus(c),
		Trigger:            trigger(c),
		PRNumber:           number,
		PullRequest:        link,
		CreatedAt:          createdAt(c),
		LastUpdatedAt:      lastUpdatedAt(c),
	}
}

// pullRequest returns the link and the number of the session's pull request. On all git hosts, the
// link ends with the number.
func pullRequest(c *v1alpha1.Conversation) (link *string, number []int64) {
	number = []int64{}
	if c.Status.Result == nil || c.Status.Result.PullRequest == "" {
		return nil, number
	}
	url := c.Status.Result.PullRequest
	if n, err := strconv.ParseInt(url[strings.LastIndex(url, "/")+1:], 10, 64); err == nil {
		number = append(number, n)
	}
	return &url, number
}

func turnOf(c *v1alpha1.Conversation) *rest.Turn {
	turn := c.Status.Turn
	if turn == nil {
		return nil
	}
	return &rest.Turn{State: string(turn.State), Reason: turn.Reason, Message: turn.Message}
}

// runtimeStatus returns OpenHands' word for the progress of a session's start. It is nil if the
// session is stopped.
func runtimeStatus(c *v1alpha1.Conversation) *string {
	switch {
	case stateOf(c) == v1alpha1.StateRunning:
		return ptr.To(rest.RuntimeReady)
	case stateOf(c) == v1alpha1.StateStopped:
		return nil
	case c.Status.Reason == v1alpha1.ReasonPreparingWorkspace:
		return ptr.To(rest.RuntimeWorkspace)
	}
	return ptr.To(rest.RuntimeStarting)
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// createdAt returns the precise time of creation that the facade recorded, unless it contradicts
// the creation time in the object's metadata.
func createdAt(c *v1alpha1.Conversation) time.Time {
	annotation := c.Annotations[cluster.AnnotationCreatedAt]
	if annotation == "" {
		return c.CreationTimestamp.UTC()
	}
	precise, err := time.Parse(time.RFC3339Nano, annotation)
	if err != nil || precise.Sub(c.CreationTimestamp.Time).Abs() > 5*time.Second {
		return c.CreationTimestamp.UTC()
	}
	return precise.UTC()
}

func lastUpdatedAt(c *v1alpha1.Conversation) time.Time {
	latest := createdAt(c)
	for _, condition := range c.Status.Conditions {
		if condition.LastTransitionTime.After(latest) {
			latest = condition.LastTransitionTime.UTC()
		}
	}
	return latest
}

func trigger(c *v1alpha1.Conversation) string {
	switch {
	case c.Spec.SuggestedTask != nil:
		return rest.TriggerSuggestedTask
	case c.Spec.CreateMicroagent != nil:
		return rest.TriggerMicroagent
	}
	return rest.TriggerGUI
}

// titleOf returns the title that wholeTitle chooses. If the title comes from a message, titleOf
// truncates it, because the first line of a message may be long.
func titleOf(c *v1alpha1.Conversation) string {
	title, fromMessage := wholeTitle(c)
	if fromMessage {
		return truncate(title)
	}
	return title
}

// wholeTitle returns the title that the user set, else the title of the task or microagent, else
// the first line of the first message, else a title with the start of the conversation's name. It
// does not truncate the title. fromMessage is set if the title is the first line of the message.
func wholeTitle(c *v1alpha1.Conversation) (title string, fromMessage bool) {
	switch spec := &c.Spec; {
	case c.Annotations[v1alpha1.AnnotationTitle] != "":
		return c.Annotations[v1alpha1.AnnotationTitle], false
	case spec.SuggestedTask != nil:
		return spec.SuggestedTask.Title, false
	case spec.CreateMicroagent != nil && spec.CreateMicroagent.Title != nil:
		return *spec.CreateMicroagent.Title, false
	case spec.InitialUserMsg != nil:
		if line := firstLine(*spec.InitialUserMsg); line != "" {
			return line, true
		}
	}
	return "Conversation " + c.Name[:min(5, len(c.Name))], false
}

func firstLine(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return strings.TrimSpace(line)
}

func truncate(line string) string {
	if utf8.RuneCountInString(line) <= maxTitle {
		return line
	}
	return string([]rune(line)[:maxTitle-1]) + "…"
}
