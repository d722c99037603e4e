package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

// slow is an archive with slow reads.
type slow struct{ *stubArchive }

func takes(ctx context.Context, long time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long): // fake time of a bubble
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

// The read timeout of requests must not cut off slow answers.
func TestSlowAnswersAreSentCompletely(t *testing.T) {
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
