package limits

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

const largest = 8 << 20

func budget() *Budget { return New(Options{MaxBody: largest}) }

func unused(b *Budget) bool {
	return len(b.accounts) == 0 && b.total == [resources]int64{}
}

// body returns a request whose Content-Length is the largest allowed size.
func body(content io.Reader) *http.Request {
	r := httptest.NewRequest("POST", "/api/settings", content)
	r.ContentLength = largest
	return r
}

func TestSlowSendersDoNotDelayOtherUsers(t *testing.T) {
	b := budget()
	var ends []*io.PipeWriter
	for _, user := range []string{"ada", "bob", "eve", "jim", "joe"} {
		content, end := io.Pipe()
		ends = append(ends, end)
		go func() { _, _, _ = b.ReadBody(body(content), user) }()
		_, _ = io.WriteString(end, "{") // the read of this body has begun
	}
	if _, done, err := b.ReadBody(body(strings.NewReader("{}")), "zoe"); err != nil {
		t.Errorf("another user is refused: %v", err)
	} else {
		done()
	}
	t.Run("slow senders use up their own limit", func(t *testing.T) {
		if _, _, err := b.ReadBody(body(strings.NewReader("{}")), "ada"); answer.CodeOf(err) != http.StatusTooManyRequests {
			t.Errorf("answered %v", err)
		}
	})
	for _, end := range ends {
		_ = end.CloseWithError(errors.New("cut off"))
	}
}

func TestConcurrentlyProcessedRequestBodiesAreBounded(t *testing.T) {
	b := budget()
	var done []func()
	for _, user := range []string{"ada", "bob", "eve", "jim"} {
		_, free, err := b.ReadBody(body(strings.NewReader(strings.Repeat("x", largest))), user)
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, free)
	}
	joe := make(chan error)
	go func() {
		_, free, err := b.ReadBody(body(strings.NewReader(strings.Repeat("x", largest))), "joe")
		if err == nil {
			free()
		}
		joe <- err
	}()
	select {
	case err := <-joe:
		t.Fatalf("the fifth body does not wait: %v", err)
	default:
	}
	done[0]()
	if err := <-joe; err != nil {
		t.Errorf("the fifth body is refused: %v", err)
	}
	for _, free := range done[1:] {
		free()
	}
	if !unused(b) {
		t.Errorf("left over: %v", b.total)
	}
}

func TestRequestsOverTheRateAreRefusedWithRetryAfter(t *testing.T) {
	b := New(Options{Rate: 1, Burst: 2})
	for range 2 {
		if err := b.Count("ada", 1); err != nil {
			t.Fatal(err)
		}
	}
	var refusal *answer.Refusal
	if err := b.Count("ada", 1); !errors.As(err, &refusal) || refusal.RetryAfter <= 0 ||
		refusal.RetryAfter > time.Second {
		t.Errorf("answered %v", err)
	}
	if err := b.Count("bob", 1); err != nil {
		t.Errorf("another user is answered %v", err)
	}
}

func TestSocketFramesCountTowardsTheLimitOfRequestBodies(t *testing.T) {
	b := budget()
	frame := func(size int) io.Reader { return strings.NewReader(strings.Repeat("x", size)) }
	_, done, err := b.ReadFrame(t.Context(), frame(largest-10), "ada")
	if err != nil {
		t.Fatal(err)
	}
	_, small, err := b.ReadFrame(t.Context(), frame(10), "ada")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.ReadFrame(t.Context(), frame(10), "ada"); answer.CodeOf(err) != http.StatusTooManyRequests {
		t.Errorf("a third frame is answered %v", err)
	}
	if _, bobs, err := b.ReadFrame(t.Context(), frame(largest), "bob"); err != nil {
		t.Errorf("bob is answered %v", err)
	} else {
		bobs()
	}
	if _, _, err := b.ReadFrame(t.Context(), frame(largest+1), "bob"); answer.CodeOf(err) == http.StatusOK || err == nil {
		t.Error("an oversized frame is accepted")
	}
	done()
	small()
	if !unused(b) {
		t.Errorf("left over: %v", b.total)
	}
}

func TestWaitingForASlotTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget()
		turn := func(ctx context.Context, user string) (func(), error) { return b.Wait(ctx, user, ArchiveReads) }
		first, err := turn(t.Context(), "ada")
		if err != nil {
			t.Fatal(err)
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turn(hurried, "ada"); answer.CodeOf(err) != http.StatusTooManyRequests {
			t.Errorf("while ada holds her slot, ada is answered %v", err)
		}
		bobs, err := turn(t.Context(), "bob")
		if err != nil {
			t.Fatalf("bob gets no slot: %v", err)
		}
		jims, err := turn(t.Context(), "jim")
		if err != nil {
			t.Fatalf("jim gets no slot: %v", err)
		}
		first()
		second, err := turn(t.Context(), "ada")
		if err != nil {
			t.Fatalf("ada gets no slot after her release: %v", err)
		}
		hurried, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turn(hurried, "eve"); answer.CodeOf(err) != http.StatusServiceUnavailable {
			t.Errorf("while all slots are taken, eve is answered %v", err)
		}
		bobs()
		jims()
		second()
		if !unused(b) {
			t.Errorf("left over: %v of %d users", b.total, len(b.accounts))
		}
	})
}

func TestOneUsersQueueDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget()
		first, err := b.Wait(t.Context(), "ada", SettingsWrites)
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		for i := range 10 {
			go func() {
				done, err := b.Wait(t.Context(), "ada", SettingsWrites)
				if err != nil {
					t.Error(err)
				}
				order = append(order, i)
				done()
			}()
			synctest.Wait() // the request is in the queue
		}
		bobs, err := b.Wait(t.Context(), "bob", SettingsWrites)
		if err != nil {
			t.Fatal(err)
		}
		bobs()
		if len(order) > 0 {
			t.Errorf("%v did not wait", order)
		}
		first()
		synctest.Wait()
		if !slices.IsSorted(order) || len(order) != 10 || !unused(b) {
			t.Errorf("served in order %v, left over: %v", order, b.total)
		}
	})
}

// Free slots go to the waiting users in turn, so a user with many waiting requests does not block
// other users.
func TestWaitingUsersGetSlotsInRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget()
		var mu sync.Mutex
		var order []string
		enqueue := func(user string, times int) {
			for range times {
				go func() {
					done, err := b.Wait(t.Context(), user, ArchiveReads)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					order = append(order, user)
					mu.Unlock()
					time.Sleep(time.Second) // in the fake time of synctest
					done()
				}()
				synctest.Wait() // the request is in the queue
			}
		}
		for _, user := range []string{"ada", "eve", "jim", "joe"} { // more users than slots
			enqueue(user, 50)
		}
		enqueue("bob", 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		mu.Lock()
		if at := slices.Index(order, "bob"); at < 0 || at > 8 {
			t.Errorf("bob is served after %d others: %v", at, order)
		}
		mu.Unlock()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if len(order) != 201 || !unused(b) {
			t.Errorf("%d served, left over: %v", len(order), b.total)
		}
	})
}

func TestResponsesOfOneUserLeaveRoomForOtherUsers(t *testing.T) {
	b := New(Options{Responses: Bounds{User: 20, All: 80}})
	for _, c := range []struct {
		user       string
		take, left int64
	}{{"ada", 20, 60}, {"bob", 20, 40}, {"eve", 20, 20}, {"jim", 10, 10}, {"joe", 5, 5}} {
		hold := b.Hold(c.user, Responses)
		if err := hold.Take(c.take + 1); err == nil {
			t.Errorf("%s takes more than the share", c.user)
		}
		if err := hold.Take(c.take); err != nil || b.bounds[Responses].All-b.total[Responses] != c.left {
			t.Errorf("%s takes %d, which leaves %d: %v", c.user, c.take, b.bounds[Responses].All-b.total[Responses], err)
		}
	}
}

func TestSmallRequestBodiesDoNotStarveALargeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget()
		small := b.Hold("ada", Work)
		if err := small.Wait(t.Context(), largest); err != nil {
			t.Fatal(err)
		}
		large, later := b.Hold("bob", Work), b.Hold("eve", Work)
		go func() { _ = large.Wait(t.Context(), 4*largest) }()
		synctest.Wait()
		go func() { _ = later.Wait(t.Context(), 1) }()
		synctest.Wait()
		if large.size != 0 || later.size != 0 {
			t.Fatal("a large body was overtaken")
		}
		small.Release()
		synctest.Wait()
		large.Release()
		synctest.Wait()
		if later.Release(); !unused(b) {
			t.Errorf("left over: %v", b.total)
		}
	})
}

func TestAnOperationIsRetriedWhenMemoryIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget()
		other, hold := b.Hold("ada", Responses), b.Hold("ada", Responses)
		if err := other.Take(15 << 20); err != nil {
			t.Fatal(err)
		}
		tries := 0
		work := func() error { tries++; return hold.Take(10 << 20) }
		go func() {
			time.Sleep(MaxWait / 2) // in the fake time of synctest
			other.Release()
		}()
		if err := hold.Retry(t.Context(), work); err != nil || tries != 2 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if err := b.Hold("ada", Responses).Retry(t.Context(), func() error { return userBusy }); err == nil {
			t.Error("work that never fits succeeds")
		}
		if hold.Release(); !unused(b) {
			t.Errorf("left over: %v", b.total)
		}
	})
}

func TestOpenStreamsAreLimitedPerUserAndInTotal(t *testing.T) {
	b := New(Options{Streams: Bounds{User: 2, All: 3}})
	var open []func()
	for i, c := range []struct {
		user string
		code int
	}{{"ada", 0}, {"ada", 0}, {"ada", http.StatusTooManyRequests}, {"bob", 0}, {"eve", http.StatusServiceUnavailable}} {
		done, err := b.Take(c.user, Streams)
		if (err != nil) != (c.code != 0) || err != nil && answer.CodeOf(err) != c.code {
			t.Errorf("stream %d, of %s, is answered %v", i, c.user, err)
		}
		open = append(open, done)
	}
	for _, done := range open {
		done()
	}
	if !unused(b) {
		t.Errorf("left over: %v", b.total)
	}
}

func TestAUserWhoReadsTooFastHasToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{})
		read := func(user string, size int) time.Duration {
			began := time.Now()
			if err := b.Hold(user, Responses).Pace(t.Context(), size); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		if took := read("ada", responseBurst); took != 0 {
			t.Errorf("the first bytes take %s", took)
		}
		if took := read("ada", 2*responseRate); took != 2*time.Second {
			t.Errorf("bytes after the burst take %s", took)
		}
		if took := read("bob", responseRate); took != 0 {
			t.Errorf("another user waits %s", took)
		}
		b.Hold("ada", Responses).Charge(2 * responseRate)
		if took := read("ada", responseRate); took != 3*time.Second {
			t.Errorf("bytes after charged bytes take %s", took)
		}
		began := time.Now()
		download := b.Hold("ada", Responses).Download(t.Context(), bytes.NewReader(make([]byte, 8*responseRate)))
		if n, err := io.Copy(io.Discard, download); n != 8*responseRate || err != nil {
			t.Errorf("the download ends after %d bytes: %v", n, err)
		}
		if took := time.Since(began); took < time.Second || took > 3*time.Second {
			t.Errorf("the download of %d bytes takes %s", 8*responseRate, took)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Hold("ada", Responses).Pace(short, 2*responseRate); !errors.Is(err, userBusy) {
			t.Errorf("a read that cannot finish in time: %v", err)
		}
	})
}
