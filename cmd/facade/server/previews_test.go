package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

// The session of this test sends previews that were not requested.
func TestPreviewsReachOnlyClientsThatRequestThem(t *testing.T) {
	t.Parallel()
	const address = "127.31.4.3"
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(session.Port)))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc(session.EventsPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"events":[{"id":0}],"has_more":false}`)
	})
	mux.HandleFunc(session.StreamPath, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "event: preview\ndata: {\"message\":\"asked: %s\"}\n\n", r.URL.Query().Get("previews"))
		if r.URL.Query().Get("after") == "-1" {
			fmt.Fprint(w, "id: 0\ndata: {\"id\":0}\n\n")
		}
		fmt.Fprint(w, "event: preview\ndata: {}\n\n")
	})
	behind := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}}
	behind.Start()
	t.Cleanup(behind.Close)
	options := DefaultOptions()
	options.SigningKeyDir = signingKey(t)
	served := httptest.NewServer(New(&running{address: address}, options, prometheus.NewRegistry()))
	t.Cleanup(served.Close)
	const event = "id: 0\ndata: {\"id\":0}\n\n"
	for query, want := range map[string]string{
		"": event, "?previews=false": event,
		"?previews=true": "event: preview\ndata: {\"message\":\"asked: true\"}\n\n" + event + "event: preview\ndata: {}\n\n",
		"?previews=some": `{"detail":[{"type":"bool_parsing","loc":["query","previews"],"msg":"Input should be true or ` +
			`false"}]}` + "\n",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			served.URL+"/api/conversations/talk/events/stream"+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(rest.KeyHeader, stubKey)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(text) != want {
			t.Errorf("%s: %v, %q", query, err, text)
		}
	}
	if got := overSocket(t, served.URL, "-1", "0"); got != "0" {
		t.Errorf("over a socket: %s", got)
	}
}
