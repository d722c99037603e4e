package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"
)

const probeInterval = 100 * time.Millisecond

// Probe checks once whether a process is ready.
type Probe func(ctx context.Context) error

// HTTPProbe returns a probe that succeeds if a GET of the URL returns status 200.
func HTTPProbe(url string, config *tls.Config) Probe {
	client := &http.Client{
		Timeout: 5 * time.Second,
		// An idle connection would delay the server's shutdown.
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, response.Status)
		}
		return nil
	}
}

func (p Probe) wait(ctx context.Context) error {
	return Retry(ctx, probeInterval, p)
}

// Sleep waits for a duration. If the context ends first, Sleep returns its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Retry calls a function until it succeeds or the context ends. Its error contains the context's
// cause and the function's last error.
func Retry(ctx context.Context, interval time.Duration, call func(context.Context) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := call(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, last: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
