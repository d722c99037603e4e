package access

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-dev/parley/cmd/facade/answer"
)

const largest = 8 << 20

// body of the largest size that a test has control of.
func body(content io.Reader) *http.Request {
	r := httptest.NewRequest("POST", "/api/settings", content)
	r.ContentLength = largest
	return r
}

func TestSlowBodiesOfSomeHoldNobodyElseUp(t *testing.T) {
	b := NewBodies(largest)
	var ends []*io.PipeWriter
	for _, user := range []string{"ada", "bob", "eve", "jim", "joe"} {
		content, end := io.Pipe()
		ends = append(ends, end)
		go func() { _, _, _ = b.Read(body(content), user) }()
		_, _ = io.WriteString(end, "{") // it is being read
	}
	if _, done, err := b.Read(body(strings.NewReader("{}")), "zoe"); err != nil {
		t.Errorf("there is no room: %v", err)
	} else {
		done()
	}
	t.Run("but themselves", func(t *testing.T) {
		if _, _, err := b.Read(body(strings.NewReader("{}")), "ada"); answer.CodeOf(err) != http.StatusTooManyRequests {
			t.Errorf("answered %v", err)
		}
	})
	for _, end := range ends {
		_ = end.CloseWithError(errors.New("cut off"))
	}
}

func TestBodiesUnderWorkAreBounded(t *testing.T) {
	b := NewBodies(largest)
	var done []func()
	for _, user := range []string{"ada", "bob", "eve", "jim"} {
		_, free, err := b.Read(body(strings.NewReader(strings.Repeat("x", largest))), user)
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, free)
	}
	joe := make(chan error)
	go func() {
		_, free, err := b.Read(body(strings.NewReader(strings.Repeat("x", largest))), "joe")
		if err == nil {
			free()
		}
		joe <- err
	}()
	select {
	case err := <-joe:
		t.Fatalf("the fifth does not wait: %v", err)
	default:
	}
	done[0]()
	if err := <-joe; err != nil {
		t.Errorf("the fifth is not let in: %v", err)
	}
	for _, free := range done[1:] {
		free()
	}
	if len(b.announced.users) != 0 || b.read.held != 0 || !b.work.TryAcquire(4*largest) {
		t.Errorf("left over: %v", b.announced.users)
	}
}

func TestWhoAsksTooOftenIsToldWhenToComeBack(t *testing.T) {
	l := NewLimits(1, 2)
	for range 2 {
		if err := l.Take("somebody"); err != nil {
			t.Fatal(err)
		}
	}
	var refusal *answer.Refusal
	if err := l.Take("somebody"); !errors.As(err, &refusal) || refusal.RetryAfter <= 0 ||
		refusal.RetryAfter > time.Second {
		t.Errorf("answered %v", err)
	}
	if err := l.Take("somebody else"); err != nil {
		t.Errorf("somebody else is answered %v", err)
	}
}

// A frame does not say how long it becomes, so it counts as it comes.
func TestFramesOfAUserShareWhatTheirBodiesMay(t *testing.T) {
	b := NewBodies(largest)
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
		t.Error("a frame has no end")
	}
	done()
	small()
	if len(b.announced.users) != 0 || b.read.held != 0 || !b.work.TryAcquire(4*largest) {
		t.Errorf("left over: %v", b.announced.users)
	}
}

func TestWhoCannotWaitForTheirTurnHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		first, err := turns.Take(t.Context(), "ada")
		if err != nil {
			t.Fatal(err)
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Take(hurried, "ada"); answer.CodeOf(err) != http.StatusTooManyRequests {
			t.Errorf("while another of hers takes long ada is answered %v", err)
		}
		bobs, err := turns.Take(t.Context(), "bob")
		if err != nil {
			t.Fatalf("bob has no turn: %v", err)
		}
		first()
		second, err := turns.Take(t.Context(), "ada")
		if err != nil {
			t.Fatalf("there is no turn after it: %v", err)
		}
		hurried, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Take(hurried, "eve"); answer.CodeOf(err) != http.StatusServiceUnavailable {
			t.Errorf("while all turns are taken eve is answered %v", err)
		}
		bobs()
		second()
		if left := len(turns.queues.locks); left > 0 {
			t.Errorf("%d users are kept for nothing", left)
		}
	})
}
