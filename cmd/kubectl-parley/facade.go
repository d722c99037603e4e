package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// facadePort is where the facade's pods serve.
	facadePort = 3000
	// again is how long to wait before a stream that ended is followed again.
	again = time.Second
	// silences is how often a stream of a session that is stopped may bring nothing new: what a
	// session leaves may arrive a moment after it stopped.
	silences = 3
	// away is how long a facade that was there may have no pod.
	away = time.Minute
)

// talking is what the commands have in common that talk with a session, through the facade.
type talking struct {
	facade, namespace string
	// settings are the user's, and port is the one of this machine that leads to the facade.
	settings string
	port     uint16
	// given says whether a flag is.
	given func(flag string) bool
}

func (f *talking) addFlags(cmd *cobra.Command) {
	f.given = cmd.Flags().Changed
	cmd.Flags().StringVar(&f.facade, "facade", os.Getenv("PARLEY_FACADE"),
		"The facade's URL. Default: $PARLEY_FACADE, else a port of this machine is forwarded to it.")
	cmd.Flags().StringVar(&f.namespace, "facade-namespace", "parley-system", "The namespace of the facade, for that.")
}

// reporter prints what happens to a connection; silent prints nothing.
type reporter func(format string, args ...any)

func silent(string, ...any) {}

// person is the user of a conversation, at the facade.
type person struct {
	url string
	credential
	// ended says why the port no longer leads to the facade; nil where none is forwarded.
	ended <-chan error
	// say tells that the connection is lost, and when it is there again; lost is whether it is.
	say  reporter
	lost bool
}

// credential is a user's key, and where it comes from, in words that go on.
type credential struct {
	key, from string
}

// as returns the user of a Conversation, or of the settings where none is named, who talks with the
// facade until the context ends. report is told when the port that is forwarded to the facade loses
// it and reaches it again.
func (f *talking) as(ctx context.Context, c *cluster, conversation string, report reporter) (*person, error) {
	if conversation != "" {
		conv, err := c.conversation(ctx, conversation)
		if err != nil {
			return nil, err
		}
		f.settings = conv.Spec.UserSettingsName
	}
	key, err := c.keyOf(ctx, f.settings)
	if err != nil {
		return nil, err
	}
	user := &person{credential: key, say: newProgress(c.ErrOut).say}
	if f.facade != "" {
		user.url, err = f.address(user.say)
		return user, err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.reach(ctx, c, report, func() { close(ready) }) }()
	select {
	case <-ready:
		user.url, user.ended = fmt.Sprintf("http://127.0.0.1:%d", f.port), ended
		return user, nil
	case err := <-ended:
		return nil, err
	}
}

// reach the facade from the port of this machine, or a free one where it is 0, until the context
// ends, and another of its pods when one goes. ready is called when the port first leads to one.
func (f *talking) reach(ctx context.Context, c *cluster, report reporter, ready func()) error {
	var since time.Time // it is lost; zero where it was not there yet
	for {
		pod, err := f.pod(ctx, c)
		if err == nil {
			err = c.forwardPod(ctx, pod.Namespace, pod.Name, f.port, facadePort, func(local uint16) {
				if !since.IsZero() {
					report("connected again")
					return
				}
				f.port = local // a later pod is reached at the same one
				ready()
			})
			if errors.Is(err, portforward.ErrLostConnectionToPod) {
				since = time.Now()
				report("the connection is lost")
			}
			err = fmt.Errorf("reach the facade (--facade or $PARLEY_FACADE names its URL): %w", err)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(since) > away:
			return err
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// address of the facade that the user names. Where flags say which cluster or namespace is meant,
// and the environment which facade, it is said that the environment wins: the facade may be that of
// another cluster.
func (f *talking) address(say reporter) (string, error) {
	address := strings.TrimSuffix(f.facade, "/")
	u, err := url.Parse(address)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		chosen := slices.ContainsFunc([]string{"context", "cluster", "kubeconfig", "server", "namespace"}, f.given)
		if chosen && !f.given("facade") {
			say("the facade is the one that $PARLEY_FACADE names: %s://%s", u.Scheme, u.Host)
		}
		return address, nil
	}
	like := "http://HOST:PORT"
	// What may have a password in it is not repeated.
	if !strings.ContainsAny(address, "@/?") {
		like = "http://" + address
	}
	return "", fmt.Errorf("--facade or $PARLEY_FACADE is not a URL: write %s", like)
}

// pod of the facade that runs.
func (f *talking) pod(ctx context.Context, c *cluster) (*corev1.Pod, error) {
	var pods corev1.PodList
	labels := client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.ManagedBy, v1alpha1.LabelComponent: "facade"}
	if err := c.List(ctx, &pods, client.InNamespace(f.namespace), labels); err != nil {
		return nil, fmt.Errorf("find the facade (--facade or $PARLEY_FACADE names its URL): %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("no facade runs in %s: --facade or $PARLEY_FACADE names its URL", f.namespace)
}

// keyOf a user: $PARLEY_KEY, else what the Secret holds.
func (c *cluster) keyOf(ctx context.Context, user string) (credential, error) {
	if key := os.Getenv("PARLEY_KEY"); key != "" {
		return credential{key, "the key in $PARLEY_KEY; without that variable the user's Secret is read"}, nil
	}
	settings := &v1alpha1.UserSettings{}
	if err := c.Get(ctx, c.key(user), settings); err != nil {
		return credential{}, err
	}
	ref := settings.Status.SessionKeyRef
	if ref == nil {
		return credential{}, fmt.Errorf("the UserSettings %s have no key yet", user)
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, c.key(ref.Name), secret); err != nil {
		return credential{}, fmt.Errorf("read the user's key ($PARLEY_KEY can hold it): %w", err)
	}
	return credential{string(secret.Data[ref.Key]), fmt.Sprintf("the key in the Secret %s: is its URL that of this "+
		"cluster's facade?", ref.Name)}, nil
}

func (p *person) do(ctx context.Context, method, path string, header http.Header, body any) (*http.Response, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, header)
	request.Header.Set(rest.KeyHeader, p.key)
	response, err := direct.Do(request)
	if err != nil {
		// The address is no secret, but the error repeats the whole request.
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, fmt.Errorf("the facade does not answer: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	var refusal struct {
		Detail any
		Error  string
	}
	_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&refusal)
	if detail, is := refusal.Detail.(string); is {
		refusal.Error = detail
	}
	switch target, err := response.Location(); {
	case response.StatusCode == http.StatusUnauthorized:
		refusal.Error = "the facade refuses " + p.from
	case response.StatusCode/100 == 3 && err == nil:
		// Of an address only what says whose it is: the rest may hold what nobody should read.
		refusal.Error = fmt.Sprintf("instead of a facade something answers that redirects to %s://%s%s, which is not given "+
			"the key: "+
			"--facade or $PARLEY_FACADE names the facade's own URL", target.Scheme, target.Host, target.Path)
	}
	return nil, &refusedError{response.StatusCode, refusal.Error}
}

// read the answer to a request as JSON.
func (p *person) read(ctx context.Context, method, path string, into any) error {
	response, err := p.do(ctx, method, path, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

// refusedError is what the facade answers with.
type refusedError struct {
	code   int
	detail string
}

func (e *refusedError) Error() string {
	if e.detail == "" {
		return fmt.Sprintf("the facade answers %d %s", e.code, http.StatusText(e.code))
	}
	return e.detail
}

// direct is a client that goes nowhere but where it is sent: where a redirect leads is nobody's to
// be given the key, and a page to sign in that it ends at would look like an answer.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send an action of the user. Where nobody answers it is sent again, with the same key: what was
// taken already is not taken twice.
func (p *person) send(ctx context.Context, conversation, action string, args map[string]any) error {
	header := http.Header{session.IdempotencyHeader: {rand.Text()}}
	for try := 1; ; try++ {
		response, err := p.do(ctx, http.MethodPost, "/api/conversations/"+conversation+"/events", header,
			map[string]any{"action": action, "args": args})
		if err == nil {
			return response.Body.Close()
		}
		if refused, ok := errors.AsType[*refusedError](err); try == sendTries ||
			ok && refused.code != http.StatusServiceUnavailable {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

// sendTries is how often it is tried to send something.
const sendTries = 3

// last event of a conversation; -1 where there is none.
func (p *person) last(ctx context.Context, conversation string) (int, error) {
	var page struct{ Events []session.Event }
	err := p.read(ctx, http.MethodGet, "/api/conversations/"+conversation+"/events?reverse=true&limit=1", &page)
	if err != nil || len(page.Events) == 0 {
		return -1, err
	}
	return page.Events[0].ID, nil
}

// follow the events of a conversation after the last one that is known, each once, whatever ends
// the stream, until take says that it is enough, or the session is stopped and leaves nothing more.
func (p *person) follow(ctx context.Context, conversation string, last int,
	take func(*session.Event) (enough bool)) error {
	quiet := 0
	for {
		before := last
		err := p.stream(ctx, conversation, &last, take)
		refused, isRefused := errors.AsType[*refusedError](err)
		switch over := errors.Is(err, errEnough) || ctx.Err() != nil; {
		case over:
			return nil
		case isRefused && refused.code != http.StatusServiceUnavailable && refused.code != http.StatusTooManyRequests:
			return err
		case err != nil && !p.lost:
			p.lost = true
			p.say("the connection is lost: %v", err)
		case err == nil:
			quiet++
			if why := p.stopped(ctx, conversation); why == "" || last > before {
				quiet = 0
			} else if quiet == silences {
				return fmt.Errorf("%s does not run: %s", conversation, why)
			}
		}
		select {
		case <-time.After(again):
		case err := <-p.ended:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// stopped is why a conversation is; empty where it is not, or where nobody can tell.
func (p *person) stopped(ctx context.Context, conversation string) (why string) {
	var now rest.Conversation
	err := p.read(ctx, http.MethodGet, "/api/conversations/"+conversation, &now)
	if err != nil || now.Status != string(v1alpha1.StateStopped) {
		return ""
	}
	return ptr.Deref(now.Reason, "it is stopped") + ": " + ptr.Deref(now.Message, "start it to go on")
}

var errEnough = errors.New("enough")

// stream the events until the stream ends, which is no error.
func (p *person) stream(ctx context.Context, conversation string, last *int, take func(*session.Event) bool) error {
	header := http.Header{"Last-Event-ID": {strconv.Itoa(*last)}}
	response, err := p.do(ctx, http.MethodGet, "/api/conversations/"+conversation+"/events/stream", header, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if p.lost {
		p.lost = false
		p.say("connected again")
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, found := strings.CutPrefix(line, "data: ")
		if !found {
			continue
		}
		event, err := session.ParseEvent([]byte(data))
		if err != nil {
			return err
		}
		*last = event.ID
		if take(&event) {
			return errEnough
		}
	}
}
