package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestALongListIsRefusedInShort(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	long := strings.Repeat("1,", 500_000) + "1"
	entries := strings.Builder{}
	for i := range 1001 {
		fmt.Fprintf(&entries, `"N%d": {},`, i)
	}
	for _, c := range []struct{ path, body, complaint string }{
		{"/api/conversations", `{"image_urls": [` + long + `]}`, "body.image_urls: too_long"},
		{"/api/conversations", `{"mcp_config": {"sse_servers": [` + long + `]}}`, "body.mcp_config.sse_servers: too_long"},
		{"/api/settings", `{"mcp_config": {"stdio_servers": [` + long + `]}}`, "body.mcp_config.stdio_servers: too_long"},
		{"/api/settings", `{"secrets_store": {"custom_secrets": {` + entries.String() + `"Z": {}}}}`, "body.secrets_store.custom_secrets: too_long"},
	} {
		ada.post(t, c.path, c.body).wants(t, 422).complains(t, c.complaint)
	}
	many := ada.post(t, "/api/conversations", `{"image_urls": [1`+strings.Repeat(",1", 999)+`]}`).wants(t, 422)
	var body struct{ Detail []Detail }
	if err := json.Unmarshal([]byte(many.body), &body); err != nil || len(body.Detail) != maxDetails {
		t.Errorf("%d details (%v)", len(body.Detail), err)
	}
}

func TestBodiesUnderWayAreBounded(t *testing.T) {
	const largest = 8 << 20
	b := newBodies(largest)
	var free []func()
	take := func(user string, code int) {
		t.Helper()
		done, refused := b.take(user, largest)
		switch {
		case refused == nil && code != 0:
			t.Fatalf("there is room for %s", user)
		case refused != nil && refused.code != code:
			t.Fatalf("%s is answered %d", user, refused.code)
		case refused == nil:
			free = append(free, done)
		}
	}
	take("ada", 0)
	take("ada", http.StatusTooManyRequests)
	take("bob", 0)
	take("eve", 0)
	take("jim", 0)
	take("joe", http.StatusServiceUnavailable)
	free[0]()
	take("joe", 0)
	for _, done := range free[1:] {
		done()
	}
	if b.all != 0 || len(b.users) != 0 {
		t.Errorf("left over: %d, %v", b.all, b.users)
	}
}

// lateBody says when it was read to its end.
type lateBody struct {
	io.Reader
	ended time.Time
}

func (b *lateBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.ended = time.Now()
	}
	return n, err
}

type deadlineCluster struct {
	stubCluster
	deadline time.Time
}

func (c *deadlineCluster) createConversation(ctx context.Context, _ *v1alpha1.Conversation, _ bool) error {
	c.deadline, _ = ctx.Deadline()
	return nil
}

func TestTheTimeForARequestBeginsWhenItsBodyIsRead(t *testing.T) {
	cluster := &deadlineCluster{}
	body := &lateBody{Reader: strings.NewReader("{}")}
	r := httptest.NewRequest("POST", "/api/conversations", body)
	r.Header.Set(keyHeader, stubKey)
	newHandler(cluster, DefaultOptions()).ServeHTTP(httptest.NewRecorder(), r)
	if cluster.deadline.Before(body.ended.Add(requestTimeout)) {
		t.Errorf("the body ended at %s, the time at %s", body.ended, cluster.deadline)
	}
}

func TestWhoAsksWhetherItIsReadyOftenAsksTheAPIServerSeldom(t *testing.T) {
	asked := 0
	h := &health{}
	for range 100 {
		_ = h.check(func(context.Context) error { asked++; return nil })
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	h.asked = h.asked.Add(-2 * healthLasts)
	if err := h.check(func(context.Context) error { return errors.New("away") }); err == nil {
		t.Error("an old answer is given")
	}
}
