// Package onboarding asks the manager to create the settings of people who sign in.
package onboarding

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	path        = "/onboard"
	timeout     = 10 * time.Second
	maxResponse = 256 << 10
)

// ErrRefused reports that the manager did not accept the token.
var ErrRefused = errors.New("the manager refuses the ID token")

// Client calls the manager.
type Client struct {
	url    string
	client *http.Client
}

// New returns a client of the manager at an https URL. The manager's certificate must be signed by
// an authority in the file caFile or, if caFile is empty, by an authority of the system.
func New(address, caFile string) (*Client, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return nil, errors.New("--onboarding-url must be an https URL")
	}
	dialer := &net.Dialer{Timeout: timeout}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: timeout,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
	if caFile != "" {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			text, err := os.ReadFile(caFile) // read each time, because the kubelet replaces it
			if err != nil {
				return nil, err
			}
			config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
			config.RootCAs.AppendCertsFromPEM(text)
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
		}
	}
	return &Client{url: strings.TrimSuffix(strings.TrimSuffix(address, "/"), path) + path,
		client: &http.Client{Transport: transport, Timeout: timeout,
			// The target of a redirect must not get the token.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Result contains the settings of a person, and the reasons why other settings of the person are
// missing.
type Result struct {
	Settings []types.NamespacedName
	Problems []string
}

// Onboard asks the manager for the settings of the person whom an ID token identifies. The manager
// creates missing settings.
func (c *Client) Onboard(ctx context.Context, token string) (*Result, error) {
	body, err := json.Marshal(map[string]string{"token": token})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("call the manager: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return nil, ErrRefused
	default:
		return nil, fmt.Errorf("the manager answered %s", response.Status)
	}
	var result Result
	if err := json.NewDecoder(io.LimitReader(response.Body, maxResponse)).Decode(&result); err != nil {
		return nil, fmt.Errorf("read the response of the manager: %w", err)
	}
	return &result, nil
}
