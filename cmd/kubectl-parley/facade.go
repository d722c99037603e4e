package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	facadePort     = 3000
	reconnectDelay = time.Second
	// A stopped session counts as ended when maxEmptyStreams streams in a row contained no event. The
	// last events may reach the archive shortly after the session has stopped.
	maxEmptyStreams = 3
	// facadeTimeout limits the time to connect to another pod of the facade after the connection
	// was lost.
	facadeTimeout = time.Minute
)

// facadeFlags are the flags of the commands that use the facade.
type facadeFlags struct {
	facade, namespace string
	// settings names the user's UserSettings. For a person who is signed in at the facade, it has
	// the form NAMESPACE/NAME. Otherwise, it is a name in the current namespace.
	settings string
	// port is the local port that is forwarded to the facade.
	port  uint16
	isSet func(flag string) bool
}

func (f *facadeFlags) addFlags(cmd *cobra.Command) {
	f.addPersonFlags(cmd)
	cmd.Flags().StringVar(&f.namespace, "facade-namespace", "parley-system", "The namespace of the facade's pods.")
}

// addPersonFlags adds the flags of commands that need no rights in Kubernetes.
func (f *facadeFlags) addPersonFlags(cmd *cobra.Command) {
	f.addURLFlag(cmd)
	cmd.Flags().StringVar(&f.settings, "settings", "", "The UserSettings to use with a login, as NAMESPACE/NAME. "+
		"Default: the stored choice.")
}

func (f *facadeFlags) addURLFlag(cmd *cobra.Command) {
	f.isSet = cmd.Flags().Changed
	cmd.Flags().StringVar(&f.facade, "facade", os.Getenv("PARLEY_FACADE"),
		"The facade's URL. Default: $PARLEY_FACADE. If neither is set, a local port is forwarded to the facade.")
}

// reporter prints a notice about a connection; silent is a reporter that prints nothing.
type reporter func(format string, args ...any)

func silent(string, ...any) {}

// facadeUser sends requests to the facade as one user.
type facadeUser struct {
	url string
	credential
	// forwardEnded receives the error that ended port forwarding; nil without forwarding.
	forwardEnded <-chan error
	// say reports that the connection is lost or restored. lost is set while the connection is
	// lost.
	say  reporter
	lost bool
	// asleep is called with the reason why the session is stopped, and with an empty reason as soon
	// as the session starts. It returns false if nothing will start the session. If asleep is nil,
	// follow() returns an error for a stopped session.
	asleep func(reason string) (wait bool)
	// preview receives the previews. If it is nil, the stream is requested without previews.
	preview func(*session.Preview)
}

// connect returns a client for the person who is signed in at the facade. If nobody is signed in,
// it returns a client for the user of a Conversation or, if conversation is empty, for the user in
// f.settings. A forwarded port stays open until the context ends. report() prints
// interruptions of the forwarding.
func (f *facadeFlags) connect(ctx context.Context, c *cluster, conversation string,
	report reporter) (*facadeUser, error) {
	say := newProgress(c.ErrOut).say
	if user, err := f.person(say); err != nil || user != nil {
		return user, err
	}
	switch {
	case conversation != "" && f.settings != "":
		return nil, errors.New("--settings needs a sign-in at the facade: run kubectl parley login")
	case conversation != "":
		conv, err := c.conversation(ctx, conversation)
		if err != nil {
			return nil, err
		}
		f.settings = conv.Spec.UserSettingsName
	}
	key, err := c.keyOf(ctx, cmp.Or(f.settings, "default"))
	if err != nil {
		return nil, err
	}
	user := &facadeUser{credential: key, say: say}
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

// forward forwards the local port to the facade until the context ends. Port 0 chooses a free port.
// When the facade's pod ends, the port is forwarded to another pod.
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
			err = fmt.Errorf("cannot connect to the facade: %w (alternatively, set its URL with --facade or "+
				"$PARLEY_FACADE)", err)
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

// address validates the facade's URL. If the URL comes from $PARLEY_FACADE and the user's flags
// select a cluster or namespace, it prints a notice, because the facade may belong to another
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
	// The error contains the address only if the address cannot contain a password.
	if !strings.ContainsAny(address, "@/?") {
		like = "http://" + address
	}
	return "", fmt.Errorf("--facade or $PARLEY_FACADE is not a URL: write %s", like)
}

func (f *facadeFlags) pod(ctx context.Context, c *cluster) (*corev1.Pod, error) {
	var pods corev1.PodList
	labels := client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.ManagedBy, v1alpha1.LabelComponent: "facade"}
	if err := c.List(ctx, &pods, client.InNamespace(f.namespace), labels); err != nil {
		return nil, fmt.Errorf("cannot find the facade: %w (alternatively, set its URL with --facade or $PARLEY_FACADE)", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("no facade runs in namespace %s: set the facade's URL with --facade or $PARLEY_FACADE",
		f.namespace)
}
