package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// measureFacade measures the facade's overhead. It creates equal Conversations, alternately over
// HTTP and directly with client-go.
func measureFacade(o options, r *report) (err error) {
	key := rand.Text() + rand.Text()
	b, err := start(filepath.Join(o.bin, "facade"), hashOf(key))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	overHTTP := b.httpCreator(key)
	directly, err := b.directCreator()
	if err != nil {
		return err
	}
	part := partFacade + ": POST /api/conversations, and the same object created with client-go"
	for _, clients := range []int{1, 32} {
		// The first round opens connections and fills caches. It is not counted.
		for _, warm := range []operation{directly, overHTTP} {
			if _, err := measure(warm, clients, o.round/4); err != nil {
				return err
			}
		}
		var direct, facade []time.Duration
		for range o.rounds {
			took, err := measure(directly, clients, o.round)
			if err != nil {
				return fmt.Errorf("directly: %w", err)
			}
			direct = append(direct, took...)
			if took, err = measure(overHTTP, clients, o.round); err != nil {
				return fmt.Errorf("over HTTP: %w", err)
			}
			facade = append(facade, took...)
		}
		for _, p := range []int{50, 99} {
			r.compare(part, fmt.Sprintf("%s: p%d", counted(clients), p), "ms", ms(percentile(facade, p)),
				ms(percentile(direct, p)))
		}
	}
	get, err := b.httpGetter(key)
	if err != nil {
		return err
	}
	for _, clients := range []int{1, 32} {
		took, err := measure(get, clients, o.round)
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		what := counted(clients) + ": GET /api/conversations/{id}"
		r.add(part, what+", per second", "", float64(len(took))/o.round.Seconds())
		r.add(part, what+", p50", "ms", ms(percentile(took, 50)))
	}
	return nil
}

func counted(clients int) string {
	if clients == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", clients)
}

type operation func(ctx context.Context) error

// measure repeats an operation with several concurrent clients. It returns the duration of each
// call.
func measure(do operation, clients int, each time.Duration) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failure error
	end := time.Now().Add(each)
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			var took []time.Duration
			var err error
			for err == nil && time.Now().Before(end) {
				begin := time.Now()
				err = do(context.Background())
				took = append(took, time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			failure = errors.Join(failure, err)
		})
	}
	group.Wait()
	return all, failure
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
