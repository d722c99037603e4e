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
	facadePort = 3000
	// reconnectDelay is the pause before the next attempt to connect.
	reconnectDelay = time.Second
	// maxEmptyStreams is the number of consecutive streams without an event after which a stopped
	// session counts as ended. The last events may reach the archive shortly after the session has
	// stopped.
	maxEmptyStreams = 3
	// facadeTimeout limits the time to connect to another pod of the facade after the connection
	// was lost.
	facadeTimeout = time.Minute
)

// facadeFlags are the flags of the commands that use the facade.
type facadeFlags struct {
	facade, namespace string
	// settings names the user's UserSettings. port is the local port that is forwarded to the facade.
	settings string
	port     uint16
	// isSet reports whether the user set a flag.
	isSet func(flag string) bool
}

func (f *facadeFlags) addFlags(cmd *cobra.Command) {
	f.isSet = cmd.Flags().Changed
	cmd.Flags().StringVar(&f.facade, "facade", os.Getenv("PARLEY_FACADE"),
		"The facade's URL. Default: $PARLEY_FACADE. If neither is set, a local port is forwarded to the facade.")
	cmd.Flags().StringVar(&f.namespace, "facade-namespace", "parley-system", "The namespace of the facade's pods.")
}

// reporter prints a notice about a connection; silent is a reporter that prints nothing.
type reporter func(format string, args ...any)

func silent(string, ...any) {}

// facadeUser sends requests to the facade as the user of a conversation.
type facadeUser struct {
	url string
	credential
	// forwardEnded receives the error that ended port forwarding; nil without forwarding.
	forwardEnded <-chan error
	// say reports that the connection is lost or restored. lost is set while the connection is lost.
	say  reporter
	lost bool
	// preview receives the previews. If it is nil, the stream is requested without previews.
	preview func(*session.Preview)
}

// credential is a user's key. rejected completes the error message "the facade rejected …": it says
// where the key comes from and what to do.
type credential struct {
	key, rejected string
}

// connect returns a client for the user of a Conversation, or of f.settings if conversation is
// empty. A forwarded port stays open until the context ends; report prints its interruptions.
func (f *facadeFlags) connect(ctx context.Context, c *cluster, conversation string,
	report reporter) (*facadeUser, error) {
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
	user := &facadeUser{credential: key, say: newProgress(c.ErrOut).say}
	if f.facade != "" {
		user.url, err = f.address(user.say)
		return user, err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.forward(ctx, c, report, func() { close(ready) }) }()
	select {
	case <-ready:
		user.url, user.forwardEnded = fmt.Sprintf("http://127.0.0.1:%d", f.port), ended
		return user, nil
	case err := <-ended:
		return nil, err
	}
}

// forward forwards the local port to the facade until the context ends. When the facade's pod ends,
// it switches to another pod. Port 0 chooses a free port. When the port is first open, it calls
// ready.
func (f *facadeFlags) forward(ctx context.Context, c *cluster, report reporter, ready func()) error {
	var lostSince time.Time // zero before the first connection
	for {
		pod, err := f.pod(ctx, c)
		if err == nil {
			err = c.forwardPod(ctx, pod.Namespace, pod.Name, f.port, facadePort, func(local uint16) {
				if !lostSince.IsZero() {
					report("reconnected")
					return
				}
				f.port = local // later pods use the same port
				ready()
			})
			if errors.Is(err, portforward.ErrLostConnectionToPod) {
				lostSince = time.Now()
				report("connection lost")
			}
			err = fmt.Errorf("cannot connect to the facade: %w (or set its URL with --facade or $PARLEY_FACADE)", err)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(lostSince) > facadeTimeout:
			return err
		}
		select {
		case <-time.After(reconnectDelay):
		case <-ctx.Done():
		}
	}
}

// address validates the facade's URL. It prints a notice if the URL comes from $PARLEY_FACADE and
// the user's flags select a cluster or namespace, because the facade may then belong to another
// cluster.
func (f *facadeFlags) address(say reporter) (string, error) {
	address := strings.TrimSuffix(f.facade, "/")
	u, err := url.Parse(address)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		chosen := slices.ContainsFunc([]string{"context", "cluster", "kubeconfig", "server", "namespace"}, f.isSet)
		if chosen && !f.isSet("facade") {
			say("using the facade of $PARLEY_FACADE: %s://%s", u.Scheme, u.Host)
		}
		return address, nil
	}
	like := "http://HOST:PORT"
	// Do not print an address that may contain a password.
	if !strings.ContainsAny(address, "@/?") {
		like = "http://" + address
	}
	return "", fmt.Errorf("--facade or $PARLEY_FACADE is not a URL: write %s", like)
}

// pod returns a running pod of the facade.
func (f *facadeFlags) pod(ctx context.Context, c *cluster) (*corev1.Pod, error) {
	var pods corev1.PodList
	labels := client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.ManagedBy, v1alpha1.LabelComponent: "facade"}
	if err := c.List(ctx, &pods, client.InNamespace(f.namespace), labels); err != nil {
		return nil, fmt.Errorf("cannot find the facade: %w (or set its URL with --facade or $PARLEY_FACADE)", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("no facade runs in namespace %s: set its URL with --facade or $PARLEY_FACADE", f.namespace)
}

// keyOf returns the key in $PARLEY_KEY, or else the key in the user's Secret.
func (c *cluster) keyOf(ctx context.Context, user string) (credential, error) {
	if key := os.Getenv("PARLEY_KEY"); key != "" {
		return credential{key, "the key in $PARLEY_KEY: unset it to use the key in the user's Secret"}, nil
	}
	settings := &v1alpha1.UserSettings{}
	if err := c.Get(ctx, c.key(user), settings); err != nil {
		return credential{}, err
	}
	ref := settings.Status.SessionKeyRef
	if ref == nil {
		return credential{}, fmt.Errorf("the UserSettings %s have no session key yet", user)
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, c.key(ref.Name), secret); err != nil {
		return credential{}, fmt.Errorf("cannot read the user's key: %w (or set the key in $PARLEY_KEY)", err)
	}
	return credential{string(secret.Data[ref.Key]), fmt.Sprintf("the key in the Secret %s: check that --facade or "+
		"$PARLEY_FACADE is the facade of this cluster", ref.Name)}, nil
}

func (p *facadeUser) do(ctx context.Context, method, path string, header http.Header, body any) (*http.Response,
	error) {
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
	response, err := noRedirects.Do(request)
	if err != nil {
		// The text of a url.Error contains the URL of the request: keep only its cause.
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, fmt.Errorf("the facade did not answer: %w", err)
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
		refusal.Error = "the facade rejected " + p.rejected
	case response.StatusCode/100 == 3 && err == nil:
		// Leave out the query, because it may contain secrets.
		refusal.Error = fmt.Sprintf("the server redirects to %s://%s%s, so it is not the facade (the key was not sent "+
			"there): "+
			"set the facade's own URL with --facade or $PARLEY_FACADE", target.Scheme, target.Host, target.Path)
	}
	return nil, &refusedError{response.StatusCode, refusal.Error}
}

// read sends a request, and decodes the JSON body of the response.
func (p *facadeUser) read(ctx context.Context, method, path string, into any) error {
	response, err := p.do(ctx, method, path, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

// refusedError is an error response of the facade.
type refusedError struct {
	code   int
	detail string
}

func (e *refusedError) Error() string {
	if e.detail == "" {
		return fmt.Sprintf("the facade answered %d %s", e.code, http.StatusText(e.code))
	}
	return e.detail
}

// noRedirects does not follow redirects: the target must not receive the key, and the response of a
// sign-in page would look like a response of the facade.
var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
	return http.ErrUseLastResponse
}}

// send sends an action of the user. It retries with the same idempotency key, so that the facade
// accepts the action only once.
func (p *facadeUser) send(ctx context.Context, conversation, action string, args map[string]any) error {
	header := http.Header{session.IdempotencyHeader: {rand.Text()}}
	for try := 1; ; try++ {
		response, err := p.do(ctx, http.MethodPost, "/api/conversations/"+conversation+"/events", header,
			map[string]any{"action": action, "args": args})
		if err == nil {
			return response.Body.Close()
		}
		if refused, ok := errors.AsType[*refusedError](err); try == sendAttempts ||
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

const sendAttempts = 3

// lastEvent returns the ID of a conversation's last event; -1 if there is none.
func (p *facadeUser) lastEvent(ctx context.Context, conversation string) (int, error) {
	var page struct{ Events []session.Event }
	err := p.read(ctx, http.MethodGet, "/api/conversations/"+conversation+"/events?reverse=true&limit=1", &page)
	if err != nil || len(page.Events) == 0 {
		return -1, err
	}
	return page.Events[0].ID, nil
}

// follow calls take() one time for each event after the event last, and reconnects when the stream
// ends. It returns when take() returns true, or when the session has stopped and has no more
// events.
func (p *facadeUser) follow(ctx context.Context, conversation string, last int,
	take func(*session.Event) (done bool)) error {
	emptyStreams := 0
	for {
		before := last
		done, err := p.stream(ctx, conversation, &last, take)
		refused, isRefused := errors.AsType[*refusedError](err)
		switch over := done || ctx.Err() != nil; {
		case over:
			return nil
		case isRefused && refused.code != http.StatusServiceUnavailable && refused.code != http.StatusTooManyRequests:
			return err
		case err != nil && !p.lost:
			p.lost = true
			p.say("connection lost: %v", err)
		case err == nil:
			emptyStreams++
			if reason := p.stopReason(ctx, conversation); reason == "" || last > before {
				emptyStreams = 0
			} else if emptyStreams == maxEmptyStreams {
				return fmt.Errorf("%s is not running: %s", conversation, reason)
			}
		}
		select {
		case <-time.After(reconnectDelay):
		case err := <-p.forwardEnded:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// stopReason returns why a conversation is stopped; empty if it runs or its state is unknown.
func (p *facadeUser) stopReason(ctx context.Context, conversation string) string {
	var now rest.Conversation
	err := p.read(ctx, http.MethodGet, "/api/conversations/"+conversation, &now)
	if err != nil || now.Status != string(v1alpha1.StateStopped) {
		return ""
	}
	return ptr.Deref(now.Reason, "Stopped") + ": " + ptr.Deref(now.Message, "start it to continue")
}

// stream calls take() for each event of one stream, until take() returns true or the stream ends.
// The end of the stream is not an error.
func (p *facadeUser) stream(ctx context.Context, conversation string, last *int,
	take func(*session.Event) bool) (done bool, err error) {
	header := http.Header{"Last-Event-ID": {strconv.Itoa(*last)}}
	path := "/api/conversations/" + conversation + "/events/stream"
	if p.preview != nil {
		path += "?" + session.PreviewsParameter + "=true"
	}
	response, err := p.do(ctx, http.MethodGet, path, header, nil)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if p.lost {
		p.lost = false
		p.say("reconnected")
	}
	lines := bufio.NewReader(response.Body)
	isPreview := false
	for !done {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		data, found := strings.CutPrefix(line, "data: ")
		if !found {
			isPreview = line == "event: "+session.PreviewEvent+"\n"
			continue
		}
		if isPreview {
			var preview session.Preview
			if err := json.Unmarshal([]byte(data), &preview); err != nil {
				return false, err
			}
			if p.preview != nil {
				p.preview(&preview)
			}
			continue
		}
		event, err := session.ParseEvent([]byte(data))
		if err != nil {
			return false, err
		}
		*last = event.ID
		done = take(&event)
	}
	return true, nil
}
