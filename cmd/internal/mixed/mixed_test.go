package mixed_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/internal/mixed"
)

func TestHTTPAndHTTPSAreServedAtOneAddress(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(nil) // provides a certificate and a client that trusts it
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("tcp", inner.Addr().String()) // a silent client must not delay others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.Proto, body)
	})}
	done := make(chan error, 1)
	listener := mixed.NewListener(inner, &tls.Config{Certificates: secure.TLS.Certificates,
		NextProtos: []string{"h2", "http/1.1"}})
	go func() { done <- server.Serve(listener) }()
	for scheme, want := range map[string]string{"http": "HTTP/1.1 x", "https": "HTTP/2.0 x"} {
		for range 2 {
			response, err := secure.Client().Post(scheme+"://"+inner.Addr().String(), "", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if string(got) != want {
				t.Errorf("%s: got %s", scheme, got)
			}
		}
	}
	_ = server.Close()
	if err := <-done; err != http.ErrServerClosed { //nolint:errorlint // Serve does not wrap this error
		t.Error(err)
	}
}
