package loop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

const (
	// retryPatience limits the total delay between the tries of one model call.
	retryPatience = 5 * time.Minute
	// firstDelay is the delay before the first retry. Each further delay is twice as long, up to
	// maxDelay.
	firstDelay = time.Second
	maxDelay   = time.Minute
)

// Clock tells the time and waits between retries. Tests replace it.
type Clock interface {
	Now() time.Time
	// Wait waits for the duration d. If the context ends earlier, it immediately returns the context's
	// error.
	Wait(ctx context.Context, d time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask requests an answer from the model. After a transient error, it tells the client why the try
// failed and when the next try follows, waits and tries again. newSink returns a new sink for each
// try.
func (s *Session) ask(ctx context.Context, r llm.Request, newSink func() llm.Sink) (llm.Answer, error) {
	clock := s.clock()
	var waited time.Duration
	for try := 1; ; try++ {
		sink, announced := newSink(), try > 1
		resumed := func() {
			if announced && ctx.Err() == nil {
				s.sendRetry(nil)
			}
			announced = false
		}
		answer, err := s.options.Model.Answer(ctx, r, func(text, thought string) {
			resumed()
			sink(text, thought)
		})
		failure, _ := errors.AsType[*llm.Error](err)
		if failure == nil || !failure.Transient || ctx.Err() != nil {
			resumed()
			return answer, err
		}
		delay := retryDelay(try, failure.RetryAfter)
		if waited+delay > retryPatience {
			return answer, gaveUp(failure, try, waited)
		}
		waited += delay
		s.sendPartial(acp.Update{Kind: acp.MessageChunk, Content: acp.Text("")}) // discards the pieces of this try
		s.sendRetry(&acp.Retry{Reason: failure.Message, At: clock.Now().Add(delay).UTC().Truncate(time.Second)})
		if err := clock.Wait(ctx, delay); err != nil {
			return answer, err
		}
	}
}

func (s *Session) clock() Clock {
	if s.options.Clock != nil {
		return s.options.Clock
	}
	return systemClock{}
}

// retryDelay returns the delay after a failed try. It is never shorter than the delay that the
// provider asks for. A random part makes sessions that failed at the same time retry at different
// times.
func retryDelay(try int, retryAfter time.Duration) time.Duration {
	delay := min(maxDelay, firstDelay<<min(try-1, 10))
	return max(retryAfter+rand.N(time.Second), delay+rand.N(delay/4))
}

// gaveUp returns the error that the user sees when the agent stops retrying.
func gaveUp(failure *llm.Error, tries int, waited time.Duration) error {
	message := fmt.Sprintf("%s The agent tried %d times in %s.", failure.Message, tries, waited.Round(time.Second))
	if failure.RetryAfter > retryPatience {
		message = fmt.Sprintf("%s The provider asks to wait %s.", failure.Message, failure.RetryAfter.Round(time.Second))
	}
	return &llm.Error{Kind: failure.Kind, Message: message}
}

// sendRetry tells the client why the last try failed and when the next try follows. A nil retry
// tells the client that the wait is over.
func (s *Session) sendRetry(retry *acp.Retry) {
	s.sendPartial(acp.Update{Kind: acp.SessionInfo, Meta: acp.Meta{acp.MetaRetry: retry}})
}
