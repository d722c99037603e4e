package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
)

func (l *local) say(format string, args ...any) {
	fmt.Fprintf(l.out, "%6.1fs  %s\n", time.Since(l.started).Seconds(), fmt.Sprintf(format, args...))
}

func (l *local) kubeconfigFile() string { return filepath.Join(l.stateDir, "kubeconfig") }
func (l *local) sessionKeyFile() string { return filepath.Join(l.stateDir, "session-key") }
func (l *local) podLogs() string        { return filepath.Join(l.stateDir, "log", "pods") }
func (l *local) facadeURL() string      { return fmt.Sprintf("http://127.0.0.1:%d", l.port) }

// kubectl returns the path of kubectl. The path is relative if kubectl is below the working
// directory.
func (l *local) kubectl() string {
	path := filepath.Join(l.assets, "kubectl")
	if here, err := os.Getwd(); err == nil {
		if short, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(short) {
			return short
		}
	}
	return path
}

// signInLink returns the path of a one-time sign-in link, or the path of the page if the facade
// creates no link.
func (l *local) signInLink(ctx context.Context) string {
	var link rest.SignInLink
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := cluster.Retry(ctx, retryInterval, func(ctx context.Context) error { // the facade may not know the key yet
		url := l.facadeURL() + "/api/signin/link"
		return parley.Send(ctx, http.DefaultClient, http.MethodPost, url, l.sessionKey, nil, &link)
	})
	if err != nil {
		l.say("no sign-in link: %v", err)
		return "/"
	}
	return link.Path
}

func (l *local) printBanner(ctx context.Context) {
	link := l.signInLink(ctx)
	fmt.Fprintf(l.out, `
Parley is ready.

  page         %[1]s%[8]s
  facade       %[1]s
  session key  %[2]s
  kubeconfig   %[3]s

Try:
  curl -s %[1]s/api/settings -H 'Content-Type: application/json' \
    -H "X-Session-API-Key: $(cat %[7]s)" -d '{"language": "en"}'
  KUBECONFIG=%[3]s %[4]s get parley -A

The link to the page works once, within ten minutes. For another link:
  KUBECONFIG=%[3]s PARLEY_FACADE=%[1]s bin/kubectl-parley open

Sessions run as local processes with your rights, without images and without isolation: for development only.
The output of sessions is in %[6]s.

Ctrl-C stops everything and keeps the data. Logs are in %[5]s.
`, l.facadeURL(), l.sessionKey, l.kubeconfigFile(), l.kubectl(), filepath.Join(l.stateDir, "log"), l.podLogs(),
		l.sessionKeyFile(), link)
}
