package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	crowdNamespace = "crowd"
	crowdSize      = 20
	// messagesEach is the number of messages that a user sends to each conversation.
	messagesEach = 4
	// A user pauses between two actions, like a person who reads and writes.
	shortestThought, longestThought = 2 * time.Second, 8 * time.Second
	// patience is the time after which a user gives up.
	patience = time.Minute
)

// The phases of a measurement.
const (
	aloneInCluster = "alone"
	besideTenant   = "beside the tenant"
)

var phases = []string{aloneInCluster, besideTenant}

// The measured times of the users.
const (
	response  = "response to a creation"
	creation  = "creation to RUNNING"
	roundTrip = "message to the agent's answer"
)

// crowd is a set of users who start conversations and send messages.
type crowd struct {
	installation *installation
	users        []*user
	random       func(stream uint64) *rand.Rand

	mu      sync.Mutex
	phase   string
	open    map[string]int                // number of unfinished measurements, keyed by phase
	times   map[[2]string][]time.Duration // keyed by phase and by the name of the measured time
	omitted map[string]int                // number of omitted measurements, keyed by phase
	failed  map[string][]string           // error texts, keyed by phase
	waiting map[string]chan struct{}      // keyed by conversation; closed when it runs
}

// newCrowd creates the users. They have the rights of namespace editors.
func newCrowd(ctx context.Context, i *installation, model string, seed uint64) (*crowd, error) {
	c := &crowd{installation: i, times: map[[2]string][]time.Duration{}, failed: map[string][]string{},
		open: map[string]int{}, omitted: map[string]int{}, waiting: map[string]chan struct{}{},
		random: func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }}
	api, err := client.New(i.peopleConf, client.Options{Scheme: i.admin.Scheme()})
	if err != nil {
		return nil, err
	}
	if err := i.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowdNamespace}}); err != nil {
		return nil, err
	}
	for n := range crowdSize {
		u := &user{namespace: crowdNamespace, name: fmt.Sprintf("user-%02d", n), api: &apiFrontend{client: api}}
		if u.http, err = createPerson(ctx, api, i.admin, i.facadeURL(), u, model, i.report); err != nil {
			return nil, fmt.Errorf("user %s: %w", u.name, err)
		}
		c.users = append(c.users, u)
	}
	return c, nil
}

// createPerson creates the UserSettings of a user, with a model and a secret. It returns an HTTP
// client with the user's session key.
func createPerson(ctx context.Context, api, admin client.Client, facadeURL string, u *user, model string,
	r *report) (*httpFrontend, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := manifests.Persist(ctx, func(ctx context.Context) error {
		return client.IgnoreAlreadyExists(api.Create(ctx, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{
			Namespace: u.namespace, Name: u.name}}))
	})
	if err != nil {
		return nil, err
	}
	var key string
	if err := manifests.Persist(ctx, func(ctx context.Context) (err error) {
		key, err = parley.SessionKey(ctx, admin, client.ObjectKey{Namespace: u.namespace, Name: u.name})
		return err
	}); err != nil {
		return nil, err
	}
	r.addKeys([]byte(key))
	f := newHTTPFrontend(facadeURL, key, r)
	settings := rest.Settings{
		LLMModel: rest.Set("openai/small"), LLMBaseURL: rest.Set(model),
		LLMAPIKey: rest.NewKey(canary + "-model-" + u.name),
		SecretsStore: rest.Set(rest.UserSecrets{CustomSecrets: map[string]*rest.CustomSecret{
			"TOKEN": {Secret: rest.NewKey(canary + "-custom-" + u.name)}}}),
	}
	return f, cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		if a, content := f.send(ctx, http.MethodPost, "/api/settings", settings, ""); a.outcome != accepted {
			return fmt.Errorf("the facade refuses the settings: %s", content)
		}
		return nil
	})
}

// begin starts the users. The returned function stops them.
func (c *crowd) begin(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { c.follow(ctx) })
	for n, u := range c.users {
		random := c.random(uint64(n))
		all.Go(func() {
			// The users do not begin at the same moment.
			for number := 0; cluster.Sleep(ctx, time.Duration(random.Int64N(int64(3*longestThought)))) == nil; number++ {
				c.converse(ctx, u, random, fmt.Sprintf("%s-%d", u.name, number))
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); all.Wait() })
}

// follow learns from the API server which conversations run.
func (c *crowd) follow(ctx context.Context) {
	for ctx.Err() == nil {
		watch, err := c.installation.admin.Watch(ctx, &v1alpha1.ConversationList{}, client.InNamespace(crowdNamespace))
		if err != nil {
			_ = cluster.Sleep(ctx, probeInterval)
			continue
		}
		for event := range watch.ResultChan() {
			if t, ok := event.Object.(*v1alpha1.Conversation); ok && t.Status.State == v1alpha1.StateRunning {
				c.arrive(t.Name)
			}
		}
	}
}

func (c *crowd) arrive(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running := c.waiting[name]; running != nil {
		close(running)
		delete(c.waiting, name)
	}
}

func (c *crowd) expect(name string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := make(chan struct{})
	c.waiting[name] = running
	return running
}

// enter begins a phase. A measurement belongs to the phase in which it began.
func (c *crowd) enter(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = phase
}

// leave ends a phase. It waits for the measurements of the phase, so that slow measurements count,
// too.
func (c *crowd) leave(ctx context.Context, phase string) error {
	c.enter("")
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	return cluster.Retry(ctx, probeInterval, func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := c.open[phase]; n > 0 {
			return fmt.Errorf("%d measurements did not end", n)
		}
		return nil
	})
}

// measure begins a measurement. The returned function ends the measurement. It takes the error of
// the measured action, or nil. The measured time is omitted if the hypervisor stole more than a
// tenth of the CPU time in it.
func (c *crowd) measure(ctx context.Context, what string) func(err error) {
	before, _ := sampleStolen()
	c.mu.Lock()
	defer c.mu.Unlock()
	phase, began := c.phase, time.Now()
	c.open[phase]++
	return func(err error) {
		took := time.Since(began)
		after, _ := sampleStolen()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open[phase]--
		switch {
		case phase == "" || ctx.Err() != nil:
		case err != nil:
			c.failed[phase] = append(c.failed[phase], fmt.Sprintf("%s: %v", what, err))
		case after.cpu-before.cpu > max(2.0/ticksPerSecond, took.Seconds()*float64(runtime.NumCPU())/10):
			c.omitted[phase]++
		default:
			c.times[[2]string{phase, what}] = append(c.times[[2]string{phase, what}], took)
		}
	}
}

// converse starts a conversation, sends messages and deletes the conversation.
func (c *crowd) converse(ctx context.Context, u *user, random *rand.Rand, id string) {
	running := c.expect(id)
	done, responded := c.measure(ctx, creation), c.measure(ctx, response)
	a, content := u.http.send(ctx, http.MethodPost, "/api/conversations", rest.ConversationRequest{ConversationID: &id},
		"")
	responded(nil)
	if a.outcome != accepted {
		done(fmt.Errorf("refused: %.200s", content))
		return
	}
	defer func() { _ = u.http.delete(context.WithoutCancel(ctx), &conversation{user: u, name: id}) }()
	select {
	case <-running:
		done(nil)
	case <-time.After(patience):
		done(fmt.Errorf("%s does not run after %s", id, patience))
		return
	case <-ctx.Done():
		done(ctx.Err())
		return
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	ends := u.turnEnds(watching, id)
	for n := range messagesEach {
		thought := shortestThought + time.Duration(random.Int64N(int64(longestThought-shortestThought)))
		if cluster.Sleep(ctx, thought) != nil {
			return
		}
		done := c.measure(ctx, roundTrip)
		_, err := u.say(ctx, id, fmt.Sprintf("message %d", n), ends)
		done(err)
	}
}

// turnEnd is the end of a turn.
type turnEnd struct {
	message string // the user's message that began the turn
	state   session.State
	reason  string // why the turn failed
}

// say sends a message and waits for the end of the agent's turn.
func (u *user) say(ctx context.Context, id, text string, ends <-chan turnEnd) (turnEnd, error) {
	a, content := u.http.send(ctx, http.MethodPost, "/api/conversations/"+id+"/message", map[string]string{
		"message": text}, "")
	if a.outcome != accepted {
		return turnEnd{}, fmt.Errorf("%s refused: %.200s", id, content)
	}
	late := time.After(patience)
	for {
		select {
		case end := <-ends:
			if end.message == text {
				return end, nil
			}
		case <-late:
			return turnEnd{}, fmt.Errorf("%s has no answer after %s", id, patience)
		case <-ctx.Done():
			return turnEnd{}, ctx.Err()
		}
	}
}

// turnEnds follows the stream of a conversation, and sends the end of each turn to the channel. It
// reconnects if the stream ends.
func (u *user) turnEnds(ctx context.Context, id string) <-chan turnEnd {
	ends := make(chan turnEnd, messagesEach)
	go func() {
		last, text := -1, ""
		for ctx.Err() == nil {
			_ = u.http.stream(ctx, "/api/conversations/"+id+"/events/stream", last, func(e session.Event) {
				last = e.ID
				switch state := e.StateOf(); {
				case e.IsUserMessage():
					text = e.Text()
				case text != "" && (state == session.StateAwaiting || state == session.StateError):
					reason, _ := e.Extras["reason"].(string)
					select {
					case ends <- turnEnd{text, state, reason}:
					case <-ctx.Done():
					}
					text = ""
				}
			})
			_ = cluster.Sleep(ctx, probeInterval)
		}
	}()
	return ends
}

// stream reads events until the stream ends.
func (f *httpFrontend) stream(ctx context.Context, path string, after int, take func(session.Event)) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set(rest.KeyHeader, f.key)
	request.Header.Set("Last-Event-ID", fmt.Sprint(after))
	response, err := http.DefaultClient.Do(request) // without the time limit of other requests
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		data, found := strings.CutPrefix(line, "data: ")
		var e session.Event
		if found && json.Unmarshal([]byte(data), &e) == nil {
			take(e)
		}
	}
}

// print prints the measured times of the users. It reports a violation if the hostile tenant slowed
// the users down.
func (c *crowd) print(out io.Writer, r *report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("\n%d users\tof\t%s\t%s\tratio\tat most", len(c.users), aloneInCluster, besideTenant)
	for _, what := range []string{response, creation, roundTrip} {
		alone, beside := c.times[[2]string{aloneInCluster, what}], c.times[[2]string{besideTenant, what}]
		counts := fmt.Sprintf("%d, %d", len(alone), len(beside))
		if len(alone) == 0 || len(beside) == 0 {
			r.violation(checkOthers, "%s: %s measurements", what, counts)
			continue
		}
		for _, p := range []int{50, 99} {
			a, b := percentile(alone, p), percentile(beside, p)
			ratio, bound := b.Seconds()/a.Seconds(), "-"
			// The response to a creation needs no bound of its own: its time is part of the time
			// from the creation to RUNNING, which has a bound.
			bounded := p == 99 && what != response
			if bounded {
				bound = fmt.Sprint(maxRatio)
			}
			line("%s, p%d\t%s\t%.0f ms\t%.0f ms\t%.2f\t%s", what, p, counts, a.Seconds()*1000, b.Seconds()*1000, ratio, bound)
			if bounded && ratio > maxRatio {
				r.violation(checkOthers, "%s, p%d: %.2f times as long", what, p, ratio)
			}
		}
	}
	line("omitted: CPU time was stolen\t\t%d\t%d", c.omitted[aloneInCluster], c.omitted[besideTenant])
	line("failed requests\t\t%d\t%d", len(c.failed[aloneInCluster]), len(c.failed[besideTenant]))
	for _, phase := range phases {
		measured := 0
		for _, what := range []string{response, creation, roundTrip} {
			measured += len(c.times[[2]string{phase, what}])
		}
		if n := c.omitted[phase]; n > measured/4 {
			r.violation(checkOthers, "%s: %d measurements were omitted, because CPU time was stolen", phase, n)
		}
		for _, text := range c.failed[phase] {
			r.violation(checkOthers, "%s: %s", phase, text)
		}
	}
}

// percentile returns the smallest time that is at least as long as p percent of all times.
func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.SortedFunc(slices.Values(times), cmp.Compare[time.Duration])
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
