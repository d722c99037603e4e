package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

type slow struct{ *stubArchive }

func takes(ctx context.Context, long time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long): // in the fake time of a synctest bubble
		return nil
	}
}

func (slow) Events(ctx context.Context, _ string, _, from int, visit func(int, json.RawMessage) bool) error {
	for id := from; id < 5; id++ {
		if err := takes(ctx, 25*time.Second); err != nil {
			return err
		}
		if !visit(id, json.RawMessage(fmt.Sprintf(`{"id":%d}`, id))) {
			return nil
		}
	}
	return nil
}

func (slow) Ending(ctx context.Context, _ string) (*session.Ending, error) {
	return &session.Ending{Repository: true, Patch: "all of it"}, takes(ctx, 90*time.Second)
}

// The timeout for reading a request must not cut off a slow response.
func TestSlowResponsesAreSentCompletely(t *testing.T) {
	options := DefaultOptions()
	options.Archive = slow{}
	for path, want := range map[string]string{
		"/trajectory": `{"trajectory":[{"id":0},{"id":1},{"id":2},{"id":3},{"id":4}]}` + "\n",
		"/events/stream": "id: 0\ndata: {\"id\":0}\n\nid: 1\ndata: {\"id\":1}\n\nid: 2\ndata: {\"id\":2}\n\nid: 3\ndata: " +
			"{\"id\":3}\n\nid: 4\ndata: {\"id\":4}\n\n",
		"/git/patch": "all of it",
	} {
		inBubbleWith(t, &stopped{}, options, func(client *http.Client) {
			request, err := http.NewRequest(http.MethodGet, "http://facade/api/conversations/talk"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set(rest.KeyHeader, stubKey)
			response, err := client.Do(request)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			got, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK || string(got) != want || err != nil {
				t.Errorf("%s: the answer is %d %s, %v", path, response.StatusCode, got, err)
			}
		})
	}
}

// With one deadline for the whole response, a slow reader would be cut off at the same large event
// after each reconnect.
func TestSlowReadersReceiveLargeResponses(t *testing.T) {
	const size = 4 << 20
	for _, path := range []string{"/events/stream", "/events?limit=1", "/trajectory", "/git/patch"} {
		options := DefaultOptions()
		options.Archive = &stubArchive{sizes: []int{size}, patch: size, reading: map[string]int{}}
		inBubbleWith(t, &stopped{}, options, func(client *http.Client) {
			request, err := http.NewRequest(http.MethodGet, "http://facade/api/conversations/talk"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set(rest.KeyHeader, stubKey)
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			begun, received, buffer := time.Now(), 0, make([]byte, 8<<10)
			for err == nil {
				var n int
				n, err = response.Body.Read(buffer)
				received += n
				time.Sleep(time.Second) // fake time of the bubble
			}
			if took := time.Since(begun); !errors.Is(err, io.EOF) || received < size || took < 3*time.Minute {
				t.Errorf("%s: after %s the reader has %d bytes, %v", path, took, received, err)
			}
		})
	}
}

func TestStalledReadersAreCutOff(t *testing.T) {
	options := DefaultOptions()
	options.Archive = &stubArchive{sizes: []int{4 << 20}}
	for _, path := range []string{"/events/stream", "/events?limit=1"} {
		inBubbleWith(t, &stopped{}, options, func(client *http.Client) {
			request, err := http.NewRequest(http.MethodGet, "http://facade/api/conversations/talk"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set(rest.KeyHeader, stubKey)
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			time.Sleep(2 * writeTimeout) // fake time of the bubble
			if n, err := io.Copy(io.Discard, response.Body); err == nil {
				t.Errorf("%s: the reader receives all %d bytes", path, n)
			}
		})
	}
}
