package main

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// The interval is short, because a killed process loses its metrics.
const scrapeInterval = 2 * time.Second

// scrape reads the metrics of the facades and the managers, and checks that they contain no keys.
func (i *installation) scrape(ctx context.Context, r *report) {
	// The managers' certificates are self-signed.
	plain := &http.Client{Timeout: scrapeInterval, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	withToken, err := rest.HTTPWrappersForConfig(i.peopleConf, plain.Transport)
	if err != nil {
		return
	}
	asReader := &http.Client{Timeout: scrapeInterval, Transport: withToken}
	for n := range replicas {
		for _, from := range []struct {
			client *http.Client
			url    string
		}{
			{plain, "http://" + i.plane.Ports.Address(portOf("facade-metrics", n)) + "/metrics"},
			{asReader, "https://" + i.plane.Ports.Address(portOf("manager-metrics", n)) + "/metrics"},
		} {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.url, nil)
			if err != nil {
				continue
			}
			answer, err := from.client.Do(request)
			if err != nil {
				continue
			}
			text, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			r.checkForKeys(text, "metrics of "+from.url)
			if answer.StatusCode == http.StatusOK {
				r.countScrape()
			}
		}
	}
}
